//! The wire of a yard as a bad one: slow, lossy or cut, with every byte that passes counted.

use crate::{Host, Yard};
use std::process::{Command, Stdio};

/// The table of rules that count and drop, in either namespace.
const TABLE: &str = "link";

/// Bytes and packets of IP that crossed the wire, with the headers of IP and TCP and without those of Ethernet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossed {
    /// Both directions together.
    pub bytes: u64,
    /// Likewise.
    pub packets: u64,
}

impl std::ops::Sub for Crossed {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            bytes: self.bytes - before.bytes,
            packets: self.packets - before.packets,
        }
    }
}

impl Yard {
    /// Counts from now on. Packets are as on a real wire: the kernel does not put several into one.
    pub fn count(&self) {
        for host in [Host::Client, Host::Server] {
            let name = self.name(host);
            run(
                "ip",
                &format!("-n {name} link set eth0 gso_max_segs 1 gro_max_size 1500"),
                "",
            );
            // Only what the client's side sees counts, or everything would count twice. What was lost on the way
            // to it crossed the wire, so it is counted before it is dropped.
            self.rules(
                host,
                &format!(
                    "table inet {TABLE} {{
                        counter crossed {{}}
                        chain in {{ type filter hook input priority -10; iifname eth0 meta nfproto ipv4 counter name crossed; }}
                        chain out {{ type filter hook output priority -10; oifname eth0 meta nfproto ipv4 counter name crossed; }}
                        chain lossy {{ type filter hook input priority 0; }}
                    }}"
                ),
            );
        }
    }

    /// Bytes since [`Self::count`].
    pub fn crossed(&self) -> Crossed {
        let arguments = format!("nft -j list counter inet {TABLE} crossed");
        let said = run(
            "ip",
            &format!("netns exec {} {arguments}", self.name(Host::Client)),
            "",
        );
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let found = said["nftables"]
            .as_array()
            .unwrap()
            .iter()
            .find_map(|v| v.get("counter"));
        let number = |key: &str| found.unwrap()[key].as_u64().unwrap();
        Crossed {
            bytes: number("bytes"),
            packets: number("packets"),
        }
    }

    /// Makes the wire slow in both directions, such as `64kbit`. What comes faster waits, for a second at most.
    pub fn slow(&self, rate: &str) {
        for host in [Host::Client, Host::Server] {
            let name = self.name(host);
            let shape = format!("root tbf rate {rate} burst 1600 latency 1s");
            run(
                "tc",
                &format!("-n {name} qdisc replace dev eth0 {shape}"),
                "",
            );
        }
    }

    /// Loses so many of 100 packets in both directions, at random.
    pub fn lose(&self, share: u32) {
        self.drop_where(&format!(
            "iifname eth0 numgen random mod 100 < {share} drop"
        ));
    }

    /// Lets nothing pass. No end of a connection hears of it.
    pub fn cut(&self) {
        self.drop_where("iifname eth0 drop");
    }

    /// Loses nothing any more.
    pub fn mend(&self) {
        self.drop_where("");
    }

    fn drop_where(&self, rule: &str) {
        for host in [Host::Client, Host::Server] {
            let rule = match rule {
                "" => String::new(),
                _ => format!("add rule inet {TABLE} lossy {rule}\n"),
            };
            self.rules(host, &format!("flush chain inet {TABLE} lossy\n{rule}"));
        }
    }

    /// Gives the host of the client another address in the place of its own.
    pub fn readdress(&self, old: &str, new: &str) {
        let name = self.name(Host::Client);
        // In this order: an address of the same network that came later goes with the first one.
        let line = format!("-n {name} address delete {old}/24 dev eth0");
        run("ip", &line, "");
        let line = format!("-n {name} address add {new}/24 dev eth0");
        run("ip", &line, "");
    }

    fn rules(&self, host: Host, text: &str) {
        run(
            "ip",
            &format!("netns exec {} nft -f -", self.name(host)),
            text,
        );
    }
}

fn run(program: &str, line: &str, input: &str) -> String {
    use std::io::Write;
    let mut child = Command::new(program)
        .args(line.split(' '))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {line}: {said}\n{input}");
    String::from_utf8(output.stdout).unwrap()
}
