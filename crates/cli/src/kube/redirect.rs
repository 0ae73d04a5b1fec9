//! `tulle redirect`: the init container of a pod. It makes the rules that bring the pod's traffic to
//! its sidecar, and ends.

use crate::args::internal::{RedirectArgs, RedirectBackend};
use crate::failure::{Failure, OrFail, Result};
use tulle_redirect::{Exceptions, FilterBackend, PodRules, apply_redirection_here};

pub(crate) fn main(args: &RedirectArgs) -> Result<()> {
    let exceptions = Exceptions {
        exclude_inbound_ports: args.exclude_inbound_ports.clone(),
        exclude_outbound_ports: args.exclude_outbound_ports.clone(),
        exclude_outbound_ranges: args.exclude_outbound_ranges.clone(),
        include_outbound_ranges: args.include_outbound_ranges.clone(),
    };
    let rules = PodRules {
        exceptions,
        dns: args.dns,
    };
    let redirection = rules.redirection().map_err(Failure::usage)?;
    let backend = match args.backend {
        RedirectBackend::Auto => FilterBackend::Auto,
        RedirectBackend::Nft => FilterBackend::Nft,
        RedirectBackend::Iptables => FilterBackend::Iptables,
    };
    apply_redirection_here(backend, &redirection).or_fail(|| {
        "the rules cannot be made: does the container have NET_ADMIN, and the kernel nf_tables? \
         Tulle's own image has nft and no iptables"
            .to_owned()
    })
}
