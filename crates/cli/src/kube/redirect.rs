//! `tulle redirect`: the init container of a pod. It makes the rules that bring the pod's traffic to
//! its sidecar, and ends.

use crate::args::RedirectArgs;
use crate::failure::{Failure, OrFail, Result};
use std::net::IpAddr;
use tulle_redirect::{Redirection, apply_redirection_here};

pub(crate) fn main(args: &RedirectArgs) -> Result<()> {
    let mut redirection = Redirection::default();
    redirection
        .exclude_inbound_ports
        .extend(&args.exclude_inbound_ports);
    redirection
        .exclude_outbound_ports
        .extend(&args.exclude_outbound_ports);
    redirection.exclude_outbound_ranges = ranges(&args.exclude_outbound_ranges)?;
    redirection.include_outbound_ranges = ranges(&args.include_outbound_ranges)?;
    apply_redirection_here(&redirection).or_fail(|| {
        "the rules cannot be made: does the container have NET_ADMIN, and the kernel nftables?"
            .to_owned()
    })
}

fn ranges(texts: &[String]) -> Result<Vec<(IpAddr, u8)>> {
    texts.iter().map(|text| range(text)).collect()
}

fn range(text: &str) -> Result<(IpAddr, u8)> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, prefix.parse().ok()),
        None => (text, Some(u8::MAX)), // a host: as long as the address
    };
    match (address.parse(), prefix) {
        (Ok(address), Some(prefix)) => Ok((address, prefix)),
        _ => Err(Failure::usage(format!(
            "{text:?} is no network as 10.0.0.0/8"
        ))),
    }
}
