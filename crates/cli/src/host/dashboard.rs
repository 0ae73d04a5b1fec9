//! `tulle dashboard` on a host: there is none to lead to.

use crate::failure::Failure;
use crate::paths::Paths;

/// Says where the figures are instead.
pub(crate) fn none(paths: &Paths) -> Failure {
    Failure::usage("the mesh of a host has no dashboard to lead to")
        .because("Grafana and Prometheus are Services of a cluster")
        .fix(format!(
            "`tulle stat` and `tulle top` show traffic, `tulle metrics` prints all metrics; Prometheus finds the \
             proxies by {}; --context NAME asks a cluster",
            paths.metrics_targets().display()
        ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    #[test]
    fn it_says_where_prometheus_looks() {
        let paths = Paths {
            name: "a".into(),
            state: "/s".into(),
            run: "/r".into(),
        };
        let failure = none(&paths);
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.to_string().contains("/r/metrics/targets.json"));
    }
}
