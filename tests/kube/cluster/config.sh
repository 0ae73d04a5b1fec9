#!/usr/bin/env bash
# Tokens, kubeconfigs and the configuration of each component.
set -euo pipefail
. "$(dirname "$0")/env.sh"
umask 077
mkdir -p "$CONF/cni" "$STATE/cni" "$LOG"
# A directory of its own, so that a plugin can be added.
ln -s /usr/lib/cni/* "$STATE/cni"

: >"$CONF/tokens.csv"
user() { # FILE USER [GROUP]
    local token
    token=$(od -An -tx8 -N32 /dev/urandom | tr -d ' \n')
    echo "$token,$2,$2,\"${3:-}\"" >>"$CONF/tokens.csv"
    cat >"$CONF/$1.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://$NODE_IP:6443", certificate-authority: $PKI/ca.crt}}]
users: [{name: user, user: {token: $token}}]
contexts: [{name: test, context: {cluster: test, user: user}}]
current-context: test
END
}
user admin admin system:masters
user controller-manager system:kube-controller-manager
user scheduler system:kube-scheduler
user kubelet system:node:node1 system:nodes
user proxy system:kube-proxy

cat >"$CONF/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: $CGROUP
cgroupsPerQOS: true
enforceNodeAllocatable: []
failCgroupV1: false # 1.35 and newer refuse it unless told
failSwapOn: false
address: $NODE_IP
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
maxPods: 400
oomScoreAdj: 0 # without CAP_SYS_RESOURCE no score can be lowered
END
echo "# nobody is asked outside the cluster" >"$CONF/resolv.conf"

cat >"$CONF/proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: $PROXY_MODE
oomScoreAdj: 0
clientConnection: {kubeconfig: $CONF/proxy.kubeconfig}
clusterCIDR: $POD_CIDR${POD_CIDR6:+,$POD_CIDR6}
hostnameOverride: node1
bindAddress: 127.0.0.1
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, min: 0, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 0s} # those sysctls are read-only
iptables: {minSyncPeriod: 0s, masqueradeAll: false}
nftables: {minSyncPeriod: 0s}
END

cat >"$CONF/containerd.toml" <<END
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

ranges="[{\"subnet\": \"$POD_CIDR\"}]"
[[ -z $POD_CIDR6 ]] || ranges+=", [{\"subnet\": \"$POD_CIDR6\"}]"
cat >"$CONF/cni/10-bridge.conflist" <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true, "ipMasq": false,
   "ipam": {"type": "host-local", "ranges": [$ranges], "dataDir": "/run/cni-ipam"}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
