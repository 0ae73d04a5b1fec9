//! Chooses the users of an application and its sidecar, and makes the application's own directory.
//!
//! Under root each is an unprivileged user that nothing else on the host is. An application is not
//! root, who could read every sidecar's key and speak for the operator, nor its sidecar's user, whose
//! connections are not redirected; and a sidecar that was taken over has no files and no processes
//! but its own.

mod hand_over;

use self::hand_over::hand_over;
use super::context::Context;
use crate::failure::{Failure, OrFail, Result};
use crate::paths::{Paths, make_dir};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown};
use std::path::{Path, PathBuf};

/// Users that systemd sets aside for services with a user of their own; no account has one.
const OWN_USERS: RangeInclusive<u32> = 61_184..=65_519;
/// End of a sidecar's name among those who have a user. No workload's name has a dot.
const OF_SIDECAR: &str = ".sidecar";
const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// The user that an application runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    /// User and group.
    pub(crate) ids: (u32, u32),
    /// Its name and home, if it is somebody whom the host knows.
    pub(crate) known: Option<(String, PathBuf)>,
}

impl Account {
    /// It may do what the operator may.
    pub(crate) fn is_root(&self) -> bool {
        self.ids.0 == 0
    }
}

/// An application's directory.
#[derive(Debug, Clone)]
pub(crate) struct Data {
    /// Where it is.
    pub(crate) directory: PathBuf,
    /// Where the application sees it.
    pub(crate) seen: PathBuf,
}

/// The account of a workload. None: that of the supervisor, which has no choice or no other wish.
pub(crate) fn account(
    context: &Context,
    name: &str,
    asked: Option<&str>,
) -> Result<Option<Account>> {
    let own = rustix::process::geteuid().as_raw();
    match asked.map(|asked| named(name, asked)).transpose()? {
        Some(account) if is_sidecars(&context.users.borrow(), account.ids.0) => Err(Failure::new(
            format!("{name} cannot run as user {}", account.ids.0),
        )
        .because("that is a sidecar's, whose connections are not redirected")
        .fix("choose another `user`, or remove it: the application then has a user of its own")),
        Some(account) => Ok((own == 0).then_some(account)),
        None if own != 0 => Ok(None),
        None => {
            let passwd = fs::read_to_string(PASSWD).unwrap_or_default();
            let id = own_user(context, name, &passwd)?;
            Ok(Some(Account {
                ids: (id, id),
                known: None,
            }))
        }
    }
}

/// The account that a manifest names, if this process may start programs as it.
pub(crate) fn named(workload: &str, asked: &str) -> Result<Account> {
    let passwd = fs::read_to_string(PASSWD).unwrap_or_default();
    let account = known(&passwd, workload, asked)?;
    let own = rustix::process::geteuid().as_raw();
    if own == 0 || account.ids.0 == own {
        return Ok(account);
    }
    let what = format!("{workload} cannot run as user {}", account.ids.0);
    Err(Failure::new(what)
        .because(format!(
            "the mesh runs as user {own}, and only root can start programs as others"
        ))
        .fix("remove `user` from its manifest, or run `tulle up` as root"))
}

/// The user of a sidecar or gateway. None: that of the supervisor, which has no choice.
pub(crate) fn of_sidecar(context: &Context, name: &str) -> Result<Option<u32>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let passwd = fs::read_to_string(PASSWD).unwrap_or_default();
    own_user(context, &format!("{name}{OF_SIDECAR}"), &passwd).map(Some)
}

fn is_sidecars(users: &BTreeMap<String, u32>, user: u32) -> bool {
    let mut sidecars = users.iter().filter(|(name, _)| name.ends_with(OF_SIDECAR));
    sidecars.any(|(_, id)| *id == user)
}

/// Somebody by name or number, as the host's file of users has them.
fn known(passwd: &str, workload: &str, asked: &str) -> Result<Account> {
    let number = asked.parse::<u32>().ok();
    for line in passwd.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, ..] = fields.as_slice() else {
            continue;
        };
        let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse()) else {
            continue;
        };
        if *name == asked || number == Some(uid) {
            return Ok(Account {
                ids: (uid, gid),
                known: Some(((*name).to_owned(), PathBuf::from(home))),
            });
        }
    }
    match number {
        Some(id) => Ok(Account {
            ids: (id, id),
            known: None,
        }),
        None => Err(Failure::new(format!("{workload} cannot run as user {asked:?}"))
            .because(format!("{PASSWD} of this host has no user of that name"))
            .fix("make one, name another or a number as `user`, or remove it: the application then has a user of its own")),
    }
}

/// A user that nobody else is. A workload gets the owner of its directory again, unless somebody else runs as that user now.
fn own_user(context: &Context, name: &str, passwd: &str) -> Result<u32> {
    if let Some(id) = context.users.borrow().get(name) {
        return Ok(*id);
    }
    let mut taken: BTreeSet<u32> = context.users.borrow().values().copied().collect();
    taken.extend(running());
    let accounts = passwd.lines().filter_map(|l| l.split(':').nth(2));
    taken.extend(accounts.filter_map(|id| id.parse::<u32>().ok()));
    // Another workload of this mesh that is not running now.
    let others = fs::read_dir(context.paths.data()).into_iter().flatten();
    for other in others.flatten().filter(|o| o.file_name() != name) {
        taken.extend(other.metadata().map(|m| m.uid()).ok());
    }
    let Paths { state, run, .. } = &context.paths;
    taken.extend(owners_of_other_meshes(Path::new("/var/lib"), state, "data"));
    taken.extend(owners_of_other_meshes(Path::new("/run"), run, "proxies"));
    let before = fs::metadata(context.paths.data().join(name)).map(|m| m.uid());
    let before = before
        .ok()
        .filter(|id| OWN_USERS.contains(id) && !taken.contains(id));
    let id = before
        .or_else(|| choose(&format!("{}/{name}", context.paths.name), &taken))
        .ok_or_else(|| Failure::new(format!("there is no user left for {name}")))?;
    context.users.borrow_mut().insert(name.to_owned(), id);
    Ok(id)
}

/// Returns the owners of what workloads or sidecars of other meshes have in this directory of their mesh, where meshes of root are
/// unless `--state` names another place. Their processes may not run now.
fn owners_of_other_meshes(meshes: &Path, own: &Path, directory: &str) -> BTreeSet<u32> {
    let entries = |of: &Path| fs::read_dir(of).into_iter().flatten().flatten();
    // However a path leads there.
    let id = |directory: &Path| fs::metadata(directory).map(|m| (m.dev(), m.ino())).ok();
    let own = id(own);
    let is_other = |mesh: &fs::DirEntry| {
        let name = mesh.file_name();
        name.as_encoded_bytes().starts_with(b"tulle") && id(&mesh.path()) != own
    };
    let others = entries(meshes).filter(is_other);
    let kept = others.flat_map(|mesh| entries(&mesh.path().join(directory)));
    kept.filter_map(|entry| Some(entry.metadata().ok()?.uid()))
        .collect()
}

/// Gives back the users of a workload that has ended.
pub(crate) fn give_back(context: &Context, name: &str) {
    give_back_sidecar(context, name);
    release_application(&context.paths, &mut context.users.borrow_mut(), name);
}

/// Gives back the user of a sidecar or gateway that has ended.
pub(crate) fn give_back_sidecar(context: &Context, name: &str) {
    release_sidecar(&context.paths, &mut context.users.borrow_mut(), name);
}

/// A directory that could not be removed is still the former proxy's: nobody else gets its user then.
fn release_sidecar(paths: &Paths, users: &mut BTreeMap<String, u32>, name: &str) {
    if !paths.proxies().join(name).exists() {
        users.remove(&format!("{name}{OF_SIDECAR}"));
    }
}

/// The application's directory stays if something is in it, and [`own_user`] gives its owner to nobody else.
fn release_application(paths: &Paths, users: &mut BTreeMap<String, u32>, name: &str) {
    if users.remove(name).is_some() {
        // It succeeds only if nothing is in it.
        let _ = fs::remove_dir(paths.data().join(name));
        // The next one with this user must not write to the log. There may be none.
        let _ = lchown(paths.log(name), Some(0), Some(0));
    }
}

/// Returns the owners of all processes, those of another mesh's applications among them. A process that has ended but was not
/// waited for does not count: it may be this workload's former one.
fn running() -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|e| {
            e.file_name()
                .as_encoded_bytes()
                .iter()
                .all(u8::is_ascii_digit)
        })
        .filter(|e| !fs::read_to_string(e.path().join("stat")).is_ok_and(|stat| has_ended(&stat)))
        .filter_map(|e| Some(e.metadata().ok()?.uid()))
        .collect()
}

/// Reads the state from `/proc/PID/stat`: it follows the program's name, which may itself contain parentheses.
fn has_ended(stat: &str) -> bool {
    let state = stat.rsplit_once(") ").map(|(_, after)| after);
    state.is_some_and(|state| state.starts_with(['Z', 'X']))
}

/// Chooses a free number, starting at the hash of the name.
fn choose(name: &str, taken: &BTreeSet<u32>) -> Option<u32> {
    let count = OWN_USERS.end() - OWN_USERS.start() + 1;
    // FNV-1a: stable from one run to the next.
    let hash = name.bytes().fold(0x811c_9dc5_u32, |h, b| {
        (h ^ u32::from(b)).wrapping_mul(0x0100_0193)
    });
    let at = |i: u32| OWN_USERS.start() + (hash % count + i) % count;
    (0..count).map(at).find(|id| !taken.contains(id))
}

/// Makes a workload's directory and gives it to whom it runs as.
pub(crate) fn data(context: &Context, name: &str, account: Option<&Account>) -> Result<Data> {
    let directory = context.paths.data().join(name);
    make_dir(&directory, 0o700)?;
    let Some(account) = account else {
        return Ok(Data {
            seen: directory.clone(),
            directory,
        });
    };
    let what = || {
        format!(
            "cannot give {} to user {}",
            directory.display(),
            account.ids.0
        )
    };
    let before = fs::metadata(&directory).or_fail(what)?.uid();
    if before != account.ids.0 {
        hand_over(&directory, before, account.ids).or_fail(what)?;
    }
    let seen = if account.is_root() || anyone_may_pass(&context.paths.data()) {
        directory.clone()
    } else {
        let at = context.paths.data_mounts().join(name);
        make_dir(&at, 0o700)?;
        at
    };
    Ok(Data { directory, seen })
}

/// Every directory on the way lets others through.
fn anyone_may_pass(directory: &Path) -> bool {
    directory
        .ancestors()
        .all(|p| fs::metadata(p).is_ok_and(|m| m.permissions().mode() & 0o001 != 0))
}

/// Files that give a user of its own a name, which some programs insist on. `getpwuid` then finds
/// the workload's name, and its directory as its home.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The file to show as `/etc/passwd`.
    pub(crate) passwd: Option<PathBuf>,
    /// The file to show as `/etc/group`.
    pub(crate) group: Option<PathBuf>,
}

/// Writes those for a workload. None for an account that the host knows.
pub(crate) fn names(
    context: &Context,
    name: &str,
    account: Option<&Account>,
    data: &Data,
) -> Result<Names> {
    let Some(account) = account.filter(|a| a.known.is_none()) else {
        // `tulle exec` takes them where it finds them.
        for file in ["passwd", "group"] {
            let _ = fs::remove_file(context.paths.account_file(name, file));
        }
        return Ok(Names::default());
    };
    let (uid, gid) = account.ids;
    let home = data.seen.display();
    let user = format!("{name}:x:{uid}:{gid}:workload {name}:{home}:/usr/sbin/nologin");
    let write = |file: &str, line: &str, host: &str| {
        let path = context.paths.account_file(name, file);
        let text = fs::read_to_string(host).unwrap_or_default();
        let what = || format!("cannot write {}", path.display());
        // First: a user of the host may have the same name.
        fs::write(&path, format!("{line}\n{text}")).or_fail(what)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).or_fail(what)?;
        Ok::<_, Failure>(Some(path))
    };
    Ok(Names {
        passwd: write("passwd", &user, PASSWD)?,
        group: write("group", &format!("{name}:x:{gid}:"), GROUP)?,
    })
}

/// Lets an application open its own output by `/dev/stdout`, as some do. Its group has the log, which stays
/// root's: the owner of a file may take a lease on it, and whoever opens it for writing then waits for the lease's end.
pub(crate) fn give_log(log: &Path, account: &Account) -> std::io::Result<()> {
    chown(log, Some(0), Some(account.ids.1))?;
    fs::set_permissions(log, fs::Permissions::from_mode(0o660))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_of_its_own_is_the_same_again_and_nobody_elses() {
        let first = choose("mesh/a", &BTreeSet::new()).unwrap();
        assert!(OWN_USERS.contains(&first));
        assert_eq!(choose("mesh/a", &BTreeSet::new()), Some(first));
        let second = choose("mesh/a", &BTreeSet::from([first])).unwrap();
        assert!(OWN_USERS.contains(&second) && second != first);
        // Also at the end of the range.
        let all_but_one: BTreeSet<u32> = OWN_USERS.filter(|id| *id != 61_184).collect();
        assert_eq!(choose("x", &all_but_one), Some(61_184));
        assert_eq!(choose("x", &OWN_USERS.collect()), None);
    }

    #[test]
    fn a_process_that_only_waits_to_be_waited_for_has_ended() {
        assert!(has_ended("71 (a) b) Z 1 71 71"));
        assert!(!has_ended("71 (Z) S 1 71 71") && !has_ended(""));
    }

    #[test]
    fn a_user_is_a_sidecars_or_not() {
        let users = BTreeMap::from([("a".to_owned(), 61_184), ("a.sidecar".to_owned(), 61_185)]);
        assert!(is_sidecars(&users, 61_185) && !is_sidecars(&users, 61_184));
    }

    #[test]
    fn users_of_a_workload_that_has_ended_are_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths {
            name: "mesh".into(),
            state: dir.path().join("state"),
            run: dir.path().join("run"),
        };
        let names = ["a", "a.sidecar", "b", "b.sidecar"];
        let ids = names.iter().map(|name| (*name).to_owned()).zip(61_184..);
        let mut users: BTreeMap<String, u32> = ids.collect();
        let (empty, full) = (paths.data().join("a"), paths.data().join("b"));
        fs::create_dir_all(&empty).unwrap();
        fs::create_dir_all(full.join("kept")).unwrap();
        release_application(&paths, &mut users, "a");
        release_sidecar(&paths, &mut users, "a");
        assert_eq!(users.keys().collect::<Vec<_>>(), ["b", "b.sidecar"]);
        assert!(!empty.exists());
        // Files of a sidecar that could not be removed are its own for as long as they are there.
        let proxy = paths.proxies().join("b");
        fs::create_dir_all(&proxy).unwrap();
        release_application(&paths, &mut users, "b");
        release_sidecar(&paths, &mut users, "b");
        assert_eq!(users.keys().collect::<Vec<_>>(), ["b.sidecar"]);
        assert!(full.exists(), "what it keeps outlives it");
        fs::remove_dir(&proxy).unwrap();
        release_sidecar(&paths, &mut users, "b");
        assert!(users.is_empty());
    }

    #[test]
    fn users_are_known_by_name_and_number() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:1000:100:Ann,,,:/home/ann:/bin/sh\n";
        let find = |asked| known(passwd, "w", asked);
        let ann = find("ann").unwrap();
        assert_eq!(ann.ids, (1000, 100));
        assert_eq!(ann.known, Some(("ann".into(), "/home/ann".into())));
        assert_eq!(find("1000").unwrap(), ann);
        assert!(find("root").unwrap().is_root());
        assert_eq!(find("4711").unwrap().ids, (4711, 4711));
        let said = find("bob").unwrap_err().to_string();
        assert!(
            said.contains("no user of that name") && said.contains("bob"),
            "{said}"
        );
    }

    #[test]
    fn no_application_gets_the_user_of_another_mesh() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: it needs root");
        }
        let dir = tempfile::tempdir().unwrap();
        for (place, user) in [
            ("tulle/data/own", 61_200),
            ("tulle-b/data/db", 61_201),
            ("other/data/db", 61_202),
        ] {
            fs::create_dir_all(dir.path().join(place)).unwrap();
            chown(dir.path().join(place), Some(user), Some(user)).unwrap();
        }
        let own = dir.path().join("tulle");
        std::os::unix::fs::symlink(&own, dir.path().join("tulle-link")).unwrap();
        let owners = |directory| owners_of_other_meshes(dir.path(), &own, directory);
        assert_eq!(owners("data"), BTreeSet::from([61_201]));
        assert!(owners("proxies").is_empty());
    }
}
