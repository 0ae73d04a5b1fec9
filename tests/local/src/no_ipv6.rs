//! A machine without IPv6, as far as a process can tell: sockets of that family are refused.

use std::mem::offset_of;
use std::ptr;

/// Runs this where no process, this thread and those that it starts, gets a socket of IPv6: what a
/// kernel answers that was started with `ipv6.disable=1`.
pub fn without_ipv6<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    let work = || {
        refuse();
        run()
    };
    // A filter is of the thread, and ends with it.
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

#[allow(unsafe_code)]
fn refuse() {
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let at = |offset: usize| u32::try_from(offset).unwrap();
    let number = |value: i64| u32::try_from(value).unwrap();
    let mut filter = [
        step(load, 0, 0, at(offset_of!(libc::seccomp_data, nr))),
        step(equal, 0, 3, number(libc::SYS_socket)),
        step(load, 0, 0, at(offset_of!(libc::seccomp_data, args))),
        step(equal, 0, 1, number(libc::AF_INET6.into())),
        step(
            answer,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | number(libc::EAFNOSUPPORT.into()),
        ),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap(),
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: both calls change this thread alone; the kernel copies the program, which lives until
    // the call returns.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            ptr::from_ref(&program),
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}
