//! Functions that the prelude calls: over the heads of calls, and the few that a language without a host lacks.

use crate::bounds::Meter;
use crate::call::{Calls, Party, ScriptAnswer, WishKind};
use crate::failure::ScriptFailure;
use crate::head::Head;
use aws_lc_rs::{constant_time, digest, hmac};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rquickjs::function::Func;
use rquickjs::{Array, Coerced, Ctx, Exception, IntoJs, Object, Result, TypedArray, Value};
use std::rc::Rc;
use std::time::{Duration, SystemTime};
use tulle_http1::is_field_name;
use tulle_model::namespaced::is_short_for;
use tulle_model::resource::is_protected_header;

/// Wishes of a call at once.
const WISHES: usize = 16;
/// Longest wait of a plugin.
const LONGEST: Duration = Duration::from_secs(30);
/// The largest answer of a plugin, and the largest body that it makes of another, in bytes.
const BODY: usize = 1 << 20;
/// The longest value of a tag in bytes, and the most tags of a request.
const TAG: usize = 256;
const TAGS: usize = 16;
/// Most names of counters between two looks at them.
const COUNTS: usize = 32;
/// The most bytes of an answer's fields, or of a request's that it makes.
const FIELDS: usize = 64 << 10;
/// The longest name of a field in bytes, and the longest value.
const FIELD: [usize; 2] = [256, 8192];

/// Where lines of `console` go: level, text.
pub(crate) type Console = Rc<dyn Fn(&str, &str)>;

/// The number of a call's request: twice its own. A script can name any, and what it makes up names no call.
const fn request_of(call: u32) -> u32 {
    call.saturating_mul(2)
}

/// The number of its response.
const fn response_of(call: u32) -> u32 {
    request_of(call).saturating_add(1)
}

/// Does something with a head, by its number.
fn with_head<R>(
    ctx: &Ctx<'_>,
    calls: &Calls,
    head: u32,
    then: impl FnOnce(&mut Head) -> R,
) -> Result<R> {
    let done = calls.with(head / 2, |call| match head % 2 {
        0 => Some(then(&mut call.subject.request)),
        _ => call.subject.response.as_mut().map(then),
    });
    done.flatten()
        .ok_or_else(|| Exception::throw_type(ctx, "this request has ended"))
}

/// A name and value that may be set, or an error that says why not.
fn checked(ctx: &Ctx<'_>, mut name: String, mut value: String) -> Result<(String, String)> {
    let refuse = |text: String| Err(Exception::throw_type(ctx, &text));
    name.make_ascii_lowercase();
    if name.len() > FIELD[0] || !is_field_name(name.as_bytes()) {
        return refuse(format!("{name:?} is no name of a header"));
    }
    if is_protected_header(&name) {
        return refuse(format!("{name} is the proxy's: a plugin cannot change it"));
    }
    let blank = [' ', '\t'];
    if value.starts_with(blank) || value.ends_with(blank) {
        value = value.trim_matches(blank).to_owned();
    }
    let fits = |c: char| c == '\t' || ((' '..='\u{ff}').contains(&c) && c != '\u{7f}');
    if value.len() > FIELD[1] || !value.chars().all(fits) {
        return refuse(format!("the value of {name} cannot be a header's"));
    }
    Ok((name, value))
}

/// Names and values that may be set. One after the other: a list may have the same long text a thousand times.
fn all_checked(ctx: &Ctx<'_>, fields: &Array<'_>) -> Result<Vec<(String, String)>> {
    let mut left = FIELDS;
    let mut all = Vec::new();
    for field in fields.iter::<Array<'_>>() {
        let field = field?;
        let (name, value) = checked(ctx, field.get(0)?, field.get(1)?)?;
        left = left
            .checked_sub(name.len() + value.len())
            .ok_or_else(|| Exception::throw_range(ctx, "headers have at most 64 KiB"))?;
        all.push((name, value));
    }
    Ok(all)
}

/// Changes a head; `bytes`: of the change.
fn edit_head(
    ctx: &Ctx<'_>,
    calls: &Calls,
    head: u32,
    bytes: usize,
    then: impl FnOnce(&mut Head),
) -> Result<()> {
    let edited = |head: &mut Head| head.takes(bytes).then(|| then(head));
    with_head(ctx, calls, head, edited)?.ok_or_else(|| {
        Exception::throw_range(
            ctx,
            "a plugin changes at most 64 KiB of a request's headers",
        )
    })
}

/// A status that somebody may answer with, or an error.
fn check_status(ctx: &Ctx<'_>, status: u16) -> Result<()> {
    match (200..600).contains(&status) {
        true => Ok(()),
        false => Err(Exception::throw_range(
            ctx,
            "a status is between 200 and 599",
        )),
    }
}

/// A time that a plugin may wait.
fn wait(ms: f64) -> Duration {
    let time = Duration::try_from_secs_f64(ms / 1e3);
    time.unwrap_or(LONGEST).min(LONGEST)
}

/// Notes a wish of the call whose turn it is; its number.
fn wish(ctx: &Ctx<'_>, calls: &Calls, kind: WishKind) -> Result<u32> {
    let wish = calls.wish(kind, WISHES);
    wish.map(|id| id.0)
        .map_err(|why| Exception::throw_range(ctx, &why))
}

/// Identity, namespace, service and address.
fn words(party: &Party) -> Vec<String> {
    let Party {
        identity,
        namespace,
        service,
        address,
    } = party.clone();
    vec![identity, namespace, service, address]
}

fn algorithm<'a>(name: &str) -> Option<(&'a digest::Algorithm, hmac::Algorithm)> {
    Some(match name {
        "SHA-256" => (&digest::SHA256, hmac::HMAC_SHA256),
        "SHA-384" => (&digest::SHA384, hmac::HMAC_SHA384),
        "SHA-512" => (&digest::SHA512, hmac::HMAC_SHA512),
        _ => return None,
    })
}

fn known<'a>(ctx: &Ctx<'_>, name: &str) -> Result<(&'a digest::Algorithm, hmac::Algorithm)> {
    algorithm(name).ok_or_else(|| {
        let text = format!("{name}: there are SHA-256, SHA-384 and SHA-512");
        Exception::throw_type(ctx, &text)
    })
}

/// Bytes that a script gets, within its memory.
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl<'js> IntoJs<'js> for Bytes {
    fn into_js(self, ctx: &Ctx<'js>) -> Result<Value<'js>> {
        Ok(TypedArray::new_copy(ctx.clone(), self.0)?.into_value())
    }
}

/// A copy of an array's bytes.
#[allow(
    unsafe_code,
    reason = "the engine's memory is read, and no safe function of the binding copies it"
)]
fn bytes(ctx: &Ctx<'_>, array: &TypedArray<'_, u8>) -> Result<Vec<u8>> {
    // SAFETY: the slice is copied and gone before any script runs that could change or free it.
    let bytes = unsafe { array.as_bytes() }.map(<[u8]>::to_vec);
    bytes.ok_or_else(|| Exception::throw_type(ctx, "the bytes are gone"))
}

/// Makes all of them.
pub(crate) fn functions<'js>(
    ctx: &Ctx<'js>,
    calls: &Rc<Calls>,
    console: Console,
    meter: &Rc<Meter>,
) -> Result<Object<'js>> {
    let host = Object::new(ctx.clone())?;
    let meter = meter.clone();
    let look = move |ctx: Ctx<'_>| match meter.is_up() {
        true => Err(Exception::throw_range(&ctx, "it takes too long")),
        false => Ok(()),
    };
    host.set("look", Func::from(look))?;
    heads(&host, calls)?;
    ends(&host, calls)?;
    bodies(&host, calls)?;
    backends(&host, calls)?;
    telemetry(&host, calls)?;
    wishes(&host, calls)?;
    texts(&host)?;
    ciphers(&host)?;
    host.set(
        "log",
        Func::from(move |level: String, text: String| console(&level, &text)),
    )?;
    let now = || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_secs_f64() * 1e3
    };
    host.set("now", Func::from(now))?;
    Ok(host)
}

/// A text of a request's head.
fn text_of(
    calls: &Rc<Calls>,
    part: fn(&Head) -> &String,
) -> impl Fn(Ctx<'_>, u32) -> Result<String> + use<> {
    let of = calls.clone();
    move |ctx, call| with_head(&ctx, &of, request_of(call), |head| part(head).clone())
}

fn heads(host: &Object<'_>, calls: &Rc<Calls>) -> Result<()> {
    host.set("method", Func::from(text_of(calls, |head| &head.method)))?;
    host.set("path", Func::from(text_of(calls, |head| &head.path)))?;
    host.set("host", Func::from(text_of(calls, |head| &head.host)))?;
    let of = calls.clone();
    let status =
        move |ctx: Ctx<'_>, call: u32| with_head(&ctx, &of, response_of(call), |head| head.status);
    host.set("status", Func::from(status))?;
    let of = calls.clone();
    let field = move |ctx: Ctx<'_>, head: u32, Coerced(mut name): Coerced<String>| {
        name.make_ascii_lowercase();
        with_head(&ctx, &of, head, |head| head.field(&name))
    };
    host.set("field", Func::from(field))?;
    let of = calls.clone();
    let fields = move |ctx: Ctx<'_>, head: u32| {
        with_head(&ctx, &of, head, |head| {
            let each = head
                .fields()
                .map(|(name, value)| vec![name.to_owned(), value.to_owned()]);
            each.collect::<Vec<_>>()
        })
    };
    host.set("fields", Func::from(fields))?;
    let of = calls.clone();
    let edit = move |ctx: Ctx<'_>,
                     head: u32,
                     add: bool,
                     Coerced(name): Coerced<String>,
                     Coerced(value): Coerced<String>| {
        let (name, value) = checked(&ctx, name, value)?;
        let bytes = name.len() + value.len();
        edit_head(&ctx, &of, head, bytes, |head| match add {
            true => head.append(name, value),
            false => head.set(name, value),
        })
    };
    host.set("edit", Func::from(edit))?;
    let of = calls.clone();
    let remove = move |ctx: Ctx<'_>, head: u32, Coerced(name): Coerced<String>| {
        let (name, _) = checked(&ctx, name, String::new())?;
        edit_head(&ctx, &of, head, name.len(), |head| head.remove(name))
    };
    host.set("remove", Func::from(remove))?;
    let of = calls.clone();
    let path = move |ctx: Ctx<'_>, call: u32, Coerced(path): Coerced<String>| {
        let fits = |b: u8| b > b' ' && b < 0x7f && b != b'#';
        if !path.starts_with('/') || path.len() > 8192 || !path.bytes().all(fits) {
            let text = "a path begins with / and has no blanks, control characters and letters beyond ASCII";
            return Err(Exception::throw_type(&ctx, text));
        }
        let has_one = |head: &mut Head| head.path.starts_with('/');
        if !with_head(&ctx, &of, request_of(call), has_one)? {
            // CONNECT and `OPTIONS *`.
            return Err(Exception::throw_type(&ctx, "this request has no path"));
        }
        edit_head(&ctx, &of, request_of(call), path.len(), |head| {
            head.set_path(path);
        })
    };
    host.set("setPath", Func::from(path))?;
    let of = calls.clone();
    let status = move |ctx: Ctx<'_>, call: u32, status: u16| {
        check_status(&ctx, status)?;
        let bare = |status: u16| matches!(status, 0..=199 | 204 | 205 | 304);
        let fits = |head: &mut Head| !bare(status) && !bare(head.status);
        if !with_head(&ctx, &of, response_of(call), fits)? {
            // Where the body ends follows from it (RFC 9112, section 6.3).
            return Err(Exception::throw_type(
                &ctx,
                "a status without content (204, 205, 304) is not changed, and no other becomes one",
            ));
        }
        edit_head(&ctx, &of, response_of(call), 0, |head| {
            head.set_status(status);
        })
    };
    host.set("setStatus", Func::from(status))?;
    let of = calls.clone();
    let party = move |call: u32, source: bool| {
        let found = of.with(call, |call| match source {
            true => words(&call.subject.source),
            false => words(&call.subject.destination),
        });
        found.unwrap_or_default()
    };
    host.set("party", Func::from(party))?;
    Ok(())
}

fn ends(host: &Object<'_>, calls: &Rc<Calls>) -> Result<()> {
    let of = calls.clone();
    let done = move |call: u32| {
        of.with(call, |call| call.end = Some(Ok(None)));
    };
    host.set("done", Func::from(done))?;
    let of = calls.clone();
    let failed = move |call: u32, text: String| {
        let failure = ScriptFailure::thrown(text);
        of.with(call, |call| call.end = Some(Err(failure)));
    };
    host.set("failed", Func::from(failed))?;
    let of = calls.clone();
    let answer =
        move |ctx: Ctx<'_>, call: u32, status: u16, fields: Array<'_>, body: TypedArray<'_, u8>| {
            check_status(&ctx, status)?;
            let body = bytes(&ctx, &body)?;
            if body.len() > BODY {
                return Err(Exception::throw_range(&ctx, "an answer has at most 1 MiB"));
            }
            let answer = ScriptAnswer {
                status,
                fields: all_checked(&ctx, &fields)?,
                body,
            };
            of.with(call, |call| call.end = Some(Ok(Some(answer))));
            Ok(())
        };
    host.set("answer", Func::from(answer))
}

/// Says that the bytes live as long as the context, which is not seen from a closure.
fn gives_bytes<F>(function: F) -> F
where
    F: for<'js> Fn(Ctx<'js>, u32) -> Result<TypedArray<'js, u8>>,
{
    function
}

fn bodies(host: &Object<'_>, calls: &Rc<Calls>) -> Result<()> {
    let of = calls.clone();
    let body = gives_bytes(move |ctx, call| {
        let body = of.with(call, |call| std::mem::take(&mut call.body));
        TypedArray::new_copy(ctx, body.unwrap_or_default())
    });
    host.set("body", Func::from(body))?;
    let of = calls.clone();
    let replace = move |ctx: Ctx<'_>, call: u32, body: TypedArray<'_, u8>| {
        let body = bytes(&ctx, &body)?;
        if body.len() > BODY {
            return Err(Exception::throw_range(&ctx, "a body has at most 1 MiB"));
        }
        of.with(call, |call| {
            call.instead = Some(body);
            call.end = Some(Ok(None));
        });
        Ok(())
    };
    host.set("replace", Func::from(replace))?;
    let of = calls.clone();
    let judge = move |call: u32, passes: bool| {
        of.with(call, |call| {
            call.verdict = Some(passes);
            call.end = Some(Ok(None));
        });
    };
    host.set("judge", Func::from(judge))?;
    let of = calls.clone();
    let has = move |call: u32| of.with(call, |call| call.subject.has_body) == Some(true);
    host.set("hasBody", Func::from(has))?;
    let of = calls.clone();
    let skip = move |head: u32| {
        of.with(head / 2, |call| match head % 2 {
            0 => call.skips[0] = true,
            _ => call.skips[1] = true,
        });
    };
    host.set("skipBody", Func::from(skip))
}

fn backends(host: &Object<'_>, calls: &Rc<Calls>) -> Result<()> {
    let of = calls.clone();
    let all = move |call: u32| {
        let all = of.with(call, |call| call.subject.backends.clone());
        all.unwrap_or_default()
    };
    host.set("backends", Func::from(all))?;
    let of = calls.clone();
    let chosen = move |call: u32| {
        let chosen = of.with(call, |call| {
            let chosen = call.subject.backends.get(call.backend?)?;
            Some(chosen.clone())
        });
        chosen.flatten()
    };
    host.set("backend", Func::from(chosen))?;
    let of = calls.clone();
    let choose = move |ctx: Ctx<'_>, call: u32, name: String| {
        let found = of.with(call, |call| {
            let mut all = call.subject.backends.iter();
            let found = all.position(|backend| means(&name, backend))?;
            call.backend = Some(found);
            Some(())
        });
        found.flatten().ok_or_else(|| {
            let text = format!("{name} is not among the backends of the route's rule");
            Exception::throw_type(&ctx, &text)
        })
    };
    host.set("choose", Func::from(choose))
}

/// Whether `name`, with or without namespace and port, is this backend.
fn means(name: &str, backend: &str) -> bool {
    let (service, port) = backend.rsplit_once(':').unwrap_or((backend, ""));
    let (name, asked) = name.rsplit_once(':').unwrap_or((name, port));
    asked == port && is_short_for(name, service)
}

/// Tags for the log, and counters.
fn telemetry(host: &Object<'_>, calls: &Rc<Calls>) -> Result<()> {
    fn check(ctx: &Ctx<'_>, name: &str) -> Result<()> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        match !name.is_empty() && name.len() <= 64 && name.bytes().all(fits) {
            true => Ok(()),
            false => Err(Exception::throw_type(
                ctx,
                &format!("{name:?}: a name has 1 to 64 letters of ASCII, digits and _"),
            )),
        }
    }
    let of = calls.clone();
    let tag = move |ctx: Ctx<'_>, call: u32, name: String, mut value: String| {
        check(&ctx, &name)?;
        value.truncate(value.floor_char_boundary(TAG));
        let kept = of.with(call, |call| {
            call.tags.retain(|(known, _)| *known != name);
            let fits = call.tags.len() < TAGS;
            call.tags.extend(fits.then_some((name, value)));
            fits
        });
        match kept {
            Some(false) => {
                let text = format!("a request has at most {TAGS} tags");
                Err(Exception::throw_range(&ctx, &text))
            }
            _ => Ok(()),
        }
    };
    host.set("tag", Func::from(tag))?;
    let of = calls.clone();
    let count = move |ctx: Ctx<'_>, name: String, count: u32| {
        check(&ctx, &name)?;
        let mut counts = of.counts.borrow_mut();
        if counts.len() >= COUNTS && !counts.contains_key(&name) {
            let text = format!("a plugin counts at most {COUNTS} things");
            return Err(Exception::throw_range(&ctx, &text));
        }
        *counts.entry(name).or_default() += u64::from(count);
        Ok(())
    };
    host.set("count", Func::from(count))
}

fn wishes(host: &Object<'_>, calls: &Rc<Calls>) -> Result<()> {
    let of = calls.clone();
    let timer = move |ctx: Ctx<'_>, ms: f64| wish(&ctx, &of, WishKind::Timer(wait(ms.max(0.0))));
    host.set("timer", Func::from(timer))?;
    let of = calls.clone();
    let fetch = move |ctx: Ctx<'_>,
                      target: String,
                      method: String,
                      fields: Array<'_>,
                      body: TypedArray<'_, u8>,
                      ms: f64| {
        let body = bytes(&ctx, &body)?;
        if body.len() > BODY {
            return Err(Exception::throw_range(
                &ctx,
                "the body of a request has at most 1 MiB",
            ));
        }
        let kind = WishKind::Fetch {
            target,
            method,
            fields: all_checked(&ctx, &fields)?,
            body,
            timeout: wait(ms.max(1.0)),
        };
        wish(&ctx, &of, kind)
    };
    host.set("fetch", Func::from(fetch))?;
    Ok(())
}

fn texts(host: &Object<'_>) -> Result<()> {
    fn encode(ctx: Ctx<'_>, text: String) -> Result<TypedArray<'_, u8>> {
        TypedArray::new_copy(ctx, text)
    }
    fn decode(ctx: Ctx<'_>, array: TypedArray<'_, u8>, fatal: bool) -> Result<String> {
        match String::from_utf8(bytes(&ctx, &array)?) {
            Ok(text) => Ok(text),
            Err(_) if fatal => Err(Exception::throw_type(&ctx, "the bytes are not UTF-8")),
            Err(error) => Ok(String::from_utf8_lossy(error.as_bytes()).into_owned()),
        }
    }
    fn to_base64(ctx: Ctx<'_>, array: TypedArray<'_, u8>) -> Result<String> {
        Ok(BASE64_STANDARD.encode(bytes(&ctx, &array)?))
    }
    fn from_base64(ctx: Ctx<'_>, text: String) -> Result<TypedArray<'_, u8>> {
        let text: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        match BASE64_STANDARD.decode(text) {
            Ok(bytes) => TypedArray::new_copy(ctx, bytes),
            Err(error) => Err(Exception::throw_type(&ctx, &error.to_string())),
        }
    }
    host.set("encode", Func::from(encode))?;
    host.set("decode", Func::from(decode))?;
    host.set("toBase64", Func::from(to_base64))?;
    host.set("fromBase64", Func::from(from_base64))
}

fn ciphers(host: &Object<'_>) -> Result<()> {
    fn hash<'js>(
        ctx: Ctx<'js>,
        name: String,
        data: TypedArray<'js, u8>,
    ) -> Result<TypedArray<'js, u8>> {
        let (algorithm, _) = known(&ctx, &name)?;
        let made = digest::digest(algorithm, &bytes(&ctx, &data)?);
        TypedArray::new_copy(ctx, made.as_ref())
    }
    fn sign<'js>(
        ctx: Ctx<'js>,
        name: String,
        key: TypedArray<'js, u8>,
        data: TypedArray<'js, u8>,
    ) -> Result<TypedArray<'js, u8>> {
        let (_, algorithm) = known(&ctx, &name)?;
        let key = hmac::Key::new(algorithm, &bytes(&ctx, &key)?);
        let made = hmac::sign(&key, &bytes(&ctx, &data)?);
        TypedArray::new_copy(ctx, made.as_ref())
    }
    fn equal(ctx: Ctx<'_>, a: TypedArray<'_, u8>, b: TypedArray<'_, u8>) -> Result<bool> {
        let same = constant_time::verify_slices_are_equal(&bytes(&ctx, &a)?, &bytes(&ctx, &b)?);
        Ok(same.is_ok())
    }
    host.set("digest", Func::from(hash))?;
    host.set("sign", Func::from(sign))?;
    host.set("equal", Func::from(equal))
}
