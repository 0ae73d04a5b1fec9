#!/usr/bin/env bash
# Tokens, kubeconfigs and the configuration of each component.
set -euo pipefail
. "$(dirname "$0")/env.sh"
umask 077
mkdir -p "$CONF"

: >"$CONF/tokens.csv"
user() { # FILE USER [GROUP]
    local token
    token=$(od -An -tx8 -N32 /dev/urandom | tr -d ' \n')
    echo "$token,$2,$2,\"${3:-}\"" >>"$CONF/tokens.csv"
    cat >"$1.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://$NODE_HOST:6443", certificate-authority: $PKI/ca.crt}}]
users: [{name: user, user: {token: $token}}]
contexts: [{name: test, context: {cluster: test, user: user}}]
current-context: test
END
}
user "$CONF/admin" admin system:masters
user "$CONF/controller-manager" system:kube-controller-manager
user "$CONF/scheduler" system:kube-scheduler

# What every node has. A node sees its directory at the place of the first one's, so that paths in these files
# are the same on all nodes.
node() { # NUMBER
    local own ip4 ip6 pods4 pods6 ranges
    own=$(node_state "$1")
    ip4=$(node_ip4 "$1") ip6=$(node_ip6 "$1")
    pods4=$(node_pods4 "$1") pods6=$(node_pods6 "$1")
    mkdir -p "$own/conf/cni" "$own/cni" "$own/log" "$LOG"
    # A directory of its own, so that a plugin can be added.
    ln -s /usr/lib/cni/* "$own/cni"
    user "$own/conf/kubelet" "system:node:node$1" system:nodes
    user "$own/conf/proxy" system:kube-proxy

    cat >"$own/conf/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: $(node_cgroup "$1")
cgroupsPerQOS: true
enforceNodeAllocatable: []
failCgroupV1: false # 1.35 and newer refuse it unless told
failSwapOn: false
address: "${ip4:-$ip6}"
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $PKI/kubelet.crt
tlsPrivateKeyFile: $PKI/kubelet.key
clusterDNS: ["$DNS_IP"]
clusterDomain: cluster.local
resolvConf: $CONF/resolv.conf
# The disk is the machine's, and what others put there no reason to end pods.
evictionHard: {memory.available: 100Mi, nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0%, imagefs.inodesFree: 0%}
imageGCHighThresholdPercent: 100
serializeImagePulls: false
registryPullQPS: 0
eventRecordQPS: 0
kubeAPIQPS: 200
kubeAPIBurst: 400
maxPods: $( ((NODES == 1)) && echo 400 || echo 200) # fewer than it has addresses
oomScoreAdj: 0 # without CAP_SYS_RESOURCE no score can be lowered
END
    echo "# nobody is asked outside the cluster" >"$own/conf/resolv.conf"

    cat >"$own/conf/proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: $PROXY_MODE
oomScoreAdj: 0
clientConnection: {kubeconfig: $CONF/proxy.kubeconfig}
clusterCIDR: "$(both "$POD_CIDR4" "$POD_CIDR6")"
hostnameOverride: node$1
bindAddress: "$LOOPBACK"
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, min: 0, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 0s} # those sysctls are read-only
iptables: {minSyncPeriod: 0s, masqueradeAll: false}
nftables: {minSyncPeriod: 0s}
END

    cat >"$own/conf/containerd.toml" <<END
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:test"
  disable_apparmor = true
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
  disable_hugetlb_controller = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$STATE/cni"
    conf_dir = "$CONF/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
END

    ranges=$(for range in $pods4 $pods6; do printf '[{"subnet": "%s"}],' "$range"; done)
    ranges=${ranges%,}
    cat >"$own/conf/cni/10-bridge.conflist" <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true, "ipMasq": false,
   "ipam": {"type": "host-local", "ranges": [$ranges], "dataDir": "/run/cni-ipam"}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
}
for ((number = 1; number <= NODES; number++)); do
    node "$number"
done
