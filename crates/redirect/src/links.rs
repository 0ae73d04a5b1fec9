//! Links: finding, deleting, and pairs that reach from one namespace into another.

use crate::address::{Subnet4, Subnet6};
use crate::command::{CommandError, ip, ip_json};
use serde_json::Value;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The bridge, in its own namespace.
pub(crate) const BRIDGE: &str = "br0";

/// Joins a link to the bridge.
pub(crate) fn port_up(port: &str) -> Vec<String> {
    // Interfaces of the bridge's namespace have no address of their own, not even link-local.
    vec![
        format!("link set dev {BRIDGE} addrgenmode none up"),
        format!("link set dev {port} addrgenmode none master {BRIDGE} up"),
    ]
}

/// Gives a link its addresses and brings it up.
pub(crate) fn interface_up(link: &str, v4: Ipv4Addr, v6: Option<Ipv6Addr>) -> Vec<String> {
    // The hardware address is derived from the IP address. A workload that comes back is reachable
    // at once; otherwise its neighbours would use its former link for half a minute.
    let [a, b, c, d] = v4.octets();
    let mut lines = vec![
        format!("link set dev {link} address 02:54:{a:02x}:{b:02x}:{c:02x}:{d:02x}"),
        format!("addr replace {v4}/{} dev {link}", Subnet4::PREFIX),
    ];
    if let Some(v6) = v6 {
        // Duplicate address detection would keep the address unusable for a second or more.
        lines.push(format!(
            "addr replace {v6}/{} dev {link} nodad",
            Subnet6::PREFIX
        ));
    }
    lines.push(format!("link set dev {link} up"));
    lines
}

fn in_namespace(namespace: Option<&str>) -> Vec<&str> {
    namespace
        .iter()
        .flat_map(|namespace| ["-netns", namespace])
        .collect()
}

/// Finds a link by its name, in a namespace or on the host.
pub(crate) fn find_link(
    namespace: Option<&str>,
    link: &str,
) -> Result<Option<Value>, CommandError> {
    let mut args = in_namespace(namespace);
    args.extend(["link", "show"]);
    Ok(ip_json(&args)?
        .into_iter()
        .find(|found| found["ifname"] == link))
}

/// Deletes a link, unless it is gone already.
pub(crate) fn delete_link(namespace: Option<&str>, link: &str) -> Result<(), CommandError> {
    let mut args = in_namespace(namespace);
    args.extend(["link", "delete", "dev", link]);
    let deleted = ip(&args).map(drop);
    // The kernel dismantles a namespace later, and with it the other ends of its links: a link just
    // seen may be gone now, which is fine.
    if deleted.is_err() && matches!(find_link(namespace, link), Ok(None)) {
        return Ok(());
    }
    deleted
}

/// Creates a pair of links with its ends in their places. Existing ends that do not belong together
/// (after a crash, or a changed index) are replaced.
pub(crate) fn ensure_pair(
    near: (Option<&str>, &str),
    far: (&str, &str),
) -> Result<(), CommandError> {
    let far = (Some(far.0), far.1);
    let (found_near, found_far) = (find_link(near.0, near.1)?, find_link(far.0, far.1)?);
    if let (Some(a), Some(b)) = (&found_near, &found_far)
        && a["link_index"] == b["ifindex"]
        && b["link_index"] == a["ifindex"]
    {
        return Ok(());
    }
    // Deleting one end deletes the other, so look again before the second.
    for (namespace, link) in [near, far] {
        if find_link(namespace, link)?.is_some() {
            delete_link(namespace, link)?;
        }
    }
    let mut args = in_namespace(near.0);
    args.extend(["link", "add", near.1, "type", "veth", "peer", "name", far.1]);
    args.extend(far.0.iter().flat_map(|namespace| ["netns", namespace]));
    ip(&args).map(drop)
}
