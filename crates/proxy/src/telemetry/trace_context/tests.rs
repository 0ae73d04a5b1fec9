//! Tests with the texts of W3C Trace Context and of B3.

use super::*;
use proptest::prelude::*;

const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
const SPAN: u64 = 0x00f0_67aa_0ba9_02b7;
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn read_fields(fields: &[(&str, &str)]) -> Option<TraceContext> {
    read(fields.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())))
}

fn written(onward: &Onward) -> Vec<(&'static str, String)> {
    let fields = onward.fields();
    let text = |v: &[u8]| String::from_utf8(v.to_vec()).unwrap();
    fields.iter().map(|(n, v)| (n, text(v))).collect()
}

#[test]
fn a_traceparent_is_read_as_the_recommendation_says() {
    let ids = Some(Ids {
        trace: TRACE,
        span: SPAN,
        short: false,
    });
    for (value, decision, random) in [
        (PARENT.to_owned(), Decision::Record, false),
        (PARENT.replace("-01", "-00"), Decision::Drop, false),
        (PARENT.replace("-01", "-03"), Decision::Record, true),
        // Unknown flags are ignored.
        (PARENT.replace("-01", "-f8"), Decision::Drop, false),
        // The known part of a later version counts.
        (PARENT.replacen("00", "cc", 1), Decision::Record, false),
        (
            PARENT.replacen("00", "01", 1) + "-what-else",
            Decision::Record,
            false,
        ),
    ] {
        let found = read_fields(&[("TraceParent", &value)]);
        let wanted = TraceContext {
            form: Form::W3c,
            ids,
            decision: Some(decision),
            random,
        };
        assert_eq!(found, Some(wanted), "{value}");
    }
}

#[test]
fn what_is_not_a_traceparent_is_as_absent() {
    let zero = "0".repeat(32);
    for value in [
        "",
        "00",
        "00-",
        PARENT.get(..54).unwrap(),
        &format!("{PARENT}-"),
        &format!("{PARENT}0"),
        &PARENT.to_uppercase(),
        &PARENT.replacen("00", "ff", 1),
        &PARENT.replacen("00", "0x", 1),
        &(PARENT.replacen("00", "01", 1) + "."),
        &PARENT.replace('-', "_"),
        &PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &zero),
        &PARENT.replace("00f067aa0ba902b7", &zero[..16]),
        &PARENT.replace("-01", "-0x"),
        &PARENT.replace("-01", "- 1"),
    ] {
        assert_eq!(read_fields(&[("traceparent", value)]), None, "{value}");
    }
    let twice = [("traceparent", PARENT), ("traceparent", PARENT)];
    assert_eq!(read_fields(&twice), None);
    assert_eq!(read_fields(&[]), None);
}

#[test]
fn b3_in_one_field() {
    let long = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
    let short = "a3ce929d0e0e4736-00f067aa0ba902b7";
    let parent = "05e3ac9a4f6e3b90";
    for (value, is_short, decision) in [
        (format!("{long}-1"), false, Some(Decision::Record)),
        (format!("{long}-0"), false, Some(Decision::Drop)),
        (format!("{long}-d-{parent}"), false, Some(Decision::Debug)),
        (short.to_owned(), true, None),
    ] {
        let found = read_fields(&[("b3", &value)]).unwrap();
        assert_eq!(
            (found.form, found.decision),
            (Form::B3, decision),
            "{value}"
        );
        let ids = found.ids.unwrap();
        assert_eq!((ids.span, ids.short), (SPAN, is_short));
        let low = u128::from(u64::MAX);
        assert_eq!(ids.trace & low, TRACE & low);
        assert_eq!(ids.trace == TRACE, !is_short);
    }
    for (value, decision) in [("0", Decision::Drop), ("d", Decision::Debug)] {
        let found = read_fields(&[("b3", value)]).unwrap();
        assert_eq!((found.ids, found.decision), (None, Some(decision)));
    }
    for value in [
        "",
        "2",
        "true",
        "-",
        long.get(1..).unwrap(),
        &format!("{long}-"),
        &format!("{long}-2"),
        &format!("{long}-1-"),
        &format!("{long}-1-{parent}-"),
        &format!("{long}-1-{}", "g".repeat(16)),
        &long.to_uppercase(),
    ] {
        assert_eq!(read_fields(&[("b3", value)]), None, "{value}");
    }
}

#[test]
fn b3_in_several_fields() {
    let ids = [
        ("X-B3-TraceId", "4bf92f3577b34da6a3ce929d0e0e4736"),
        ("X-B3-SpanId", "00f067aa0ba902b7"),
    ];
    let with =
        |more: &[(&'static str, &'static str)]| read_fields(&[&ids[..], more].concat()).unwrap();
    assert_eq!(with(&[]).decision, None);
    assert_eq!(with(&[]).ids.unwrap().trace, TRACE);
    let sampled = |value| with(&[("X-B3-Sampled", value)]).decision;
    assert_eq!(sampled("1"), Some(Decision::Record));
    assert_eq!(sampled("true"), Some(Decision::Record));
    assert_eq!(sampled("0"), Some(Decision::Drop));
    assert_eq!(sampled("maybe"), None);
    let debug = with(&[("x-b3-flags", "1"), ("x-b3-sampled", "0")]);
    assert_eq!(debug.decision, Some(Decision::Debug));
    // A decision alone, and invalid ids.
    let alone = read_fields(&[("x-b3-sampled", "0")]).unwrap();
    assert_eq!((alone.ids, alone.decision), (None, Some(Decision::Drop)));
    assert_eq!(read_fields(&ids[..1]), None);
    assert_eq!(read_fields(&[("x-b3-flags", "0")]), None);
}

#[test]
fn a_valid_traceparent_comes_first_and_an_invalid_one_is_passed_over() {
    let b3 = ("b3", "0");
    let found = read_fields(&[b3, ("traceparent", PARENT)]).unwrap();
    assert_eq!(found.form, Form::W3c);
    assert_eq!(
        read_fields(&[b3, ("traceparent", "?")]).unwrap().form,
        Form::B3
    );
    let found = read_fields(&[("b3", "?"), ("x-b3-sampled", "1")]).unwrap();
    assert_eq!(found.form, Form::B3Multi);
}

#[test]
fn what_goes_on_is_written_in_the_form_that_came() {
    let mut onward = Onward {
        form: Form::W3c,
        ids: Ids {
            trace: TRACE,
            span: SPAN,
            short: false,
        },
        parent: 5,
        decision: Decision::Record,
        random: false,
        begins: false,
    };
    assert_eq!(written(&onward), [("traceparent", PARENT.to_owned())]);
    assert_eq!(onward.replaces(), ["traceparent"]);
    onward.begins = true;
    assert_eq!(onward.replaces(), ["traceparent", "tracestate"]);
    onward.form = Form::B3;
    let text = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1-0000000000000005";
    assert_eq!(written(&onward), [("b3", text.to_owned())]);
    onward.form = Form::B3Multi;
    onward.ids.short = true;
    onward.ids.trace &= u128::from(u64::MAX);
    let names: Vec<_> = written(&onward);
    let wanted = [
        ("x-b3-traceid", "a3ce929d0e0e4736"),
        ("x-b3-spanid", "00f067aa0ba902b7"),
        ("x-b3-parentspanid", "0000000000000005"),
        ("x-b3-sampled", "1"),
    ];
    assert_eq!(names, wanted.map(|(n, v)| (n, v.to_owned())));
    assert_eq!(onward.replaces(), wanted.map(|(n, _)| n));
}

proptest! {
    /// A context that is written is read back the same.
    #[test]
    fn what_is_written_is_read_again(
        form in prop_oneof![Just(Form::W3c), Just(Form::B3), Just(Form::B3Multi)],
        trace in 1..=u128::MAX,
        span in 1..=u64::MAX,
        parent: u64,
        short: bool,
        random: bool,
        record: bool,
    ) {
        let short = short && form != Form::W3c;
        let trace = match short {
            true => (trace & u128::from(u64::MAX)).max(1),
            false => trace,
        };
        let decision = if record { Decision::Record } else { Decision::Drop };
        let ids = Ids { trace, span, short };
        let onward = Onward { form, ids, parent, decision, random, begins: false };
        let fields = onward.fields();
        let found = read(fields.iter().map(|(n, v)| (n.as_bytes(), v)));
        prop_assert_eq!(found, Some(TraceContext {
            form,
            ids: Some(ids),
            decision: Some(decision),
            random: random && form == Form::W3c,
        }));
    }

    /// Variants that resemble a traceparent of version 00.
    #[test]
    fn texts_that_look_alike(text in "(00|01|ff|0)-?[0-9a-fA-F]{31,33}-[0-9a-f]{15,17}-[0-9a-g]{1,3}-?") {
        let digits = |part: &str, count| {
            part.len() == count && part.bytes().all(|b| b"0123456789abcdef".contains(&b))
        };
        let parts: Vec<_> = text.split('-').collect();
        let valid = match parts.as_slice() {
            [version @ ("00" | "01"), trace, span, flags, rest @ ..] => {
                (rest.is_empty() || *version == "01")
                    && digits(trace, 32) && digits(span, 16) && digits(flags, 2)
                    && trace.bytes().any(|b| b != b'0') && span.bytes().any(|b| b != b'0')
            }
            _ => false,
        };
        prop_assert_eq!(read_fields(&[("traceparent", &text)]).is_some(), valid, "{}", text);
    }
}
