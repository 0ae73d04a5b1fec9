#!/usr/bin/env bash
# A node: process 1 of its own mount, network, pid, uts and ipc namespaces, with every component
# beneath it. When it dies, all of it is gone. The first node has the control plane; the process
# namespaces of the others are within its own, so that all of them end with it. `cluster.sh up` starts them.
#
#   node.sh NUMBER
set -uo pipefail
. "$(dirname "$0")/env.sh"
number=$1
ip4=$(node_ip4 "$number") ip6=$(node_ip6 "$number")
all=$CGROUP
CGROUP=$(node_cgroup "$number")

# Private before the cgroups are bound again, or the host would see those mounts.
mount --make-rprivate /
# The images' content outlives the cluster, and is each node's own.
content=$STATE/containerd
((number == 1)) || content+=-$number
mkdir -p "$content" /var/lib/containerd
mount --bind "$content" /var/lib/containerd
if ((number > 1)); then
    # Its logs are among those of the cluster, for whoever copies them. From here on its files are where the
    # first node has its own.
    mkdir -p "$LOG/node$number"
    mount --bind "$LOG/node$number" "$STATE/node$number/log"
    mount --rbind "$STATE/node$number" "$STATE"
fi
# A sysfs that shows this network namespace, with the cgroup mounts carried over.
mkdir -p "$STATE/cgroup"
mount --rbind /sys/fs/cgroup "$STATE/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$STATE/cgroup" /sys/fs/cgroup
umount -l "$STATE/cgroup"
mount -t tmpfs tmpfs /run
for directory in /var/lib/kubelet /var/log/pods /var/log/containers "$STATE/etcd"; do
    mkdir -p "$directory"
    mount -t tmpfs -o mode=755 tmpfs "$directory"
done
mkdir -p /run/netns
# kubelet and containerd hand mounts on to pods.
mount --make-rshared /

until_true() { # TENTHS-OF-A-SECOND COMMAND...
    local tries=$1
    shift
    for ((; tries > 0; tries--)); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "gave up: $*" >&2
    return 1
}

hostname "node$number"
ip link set lo up
# Several nodes are linked by a bridge. It has a network namespace of its own, or the first node's rules for Services
# would be applied to what passes it. `cluster.sh` gives the other nodes their ends of a link.
link=node0
if ((number > 1)); then
    until_true 300 ip link show "$link"
elif ((NODES > 1)); then
    ip netns add switch
    ip -n switch link add nodes up type bridge
    ip -n switch link add node1 master nodes up type veth peer name "$link" netns "$$"
else
    ip link add "$link" type bridge
fi
ip link set "$link" up
# There is no default route: nothing can leave. The node's own processes (the API server that calls
# a webhook's Service) still need a route for the Services' addresses, or the rules are never asked.
if [[ -n $ip4 ]]; then
    ip address add "$ip4/24" dev "$link"
    ip route add "$SERVICE_CIDR4" dev "$link"
    sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.route_localnet=1
fi
if [[ -n $ip6 ]]; then
    ip address add "$ip6/64" dev "$link" nodad
    ip route add "$SERVICE_CIDR6" dev "$link"
    sysctl -qw net.ipv6.conf.all.forwarding=1
fi
for ((other = 1; other <= NODES; other++)); do
    ((other != number)) || continue
    [[ -z $ip4 ]] || ip route add "$(node_pods4 "$other")" via "$(node_ip4 "$other")" dev "$link"
    [[ -z $ip6 || -z $POD_CIDR6 ]] || ip route add "$(node_pods6 "$other")" via "$(node_ip6 "$other")" dev "$link"
done

version1=(cpu cpuacct cpuset memory pids devices freezer blkio systemd)
if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
    version1=()
    mkdir -p "/sys/fs/cgroup$CGROUP/control"
    for group in "" "$all" "$CGROUP"; do
        echo "+cpu +cpuset +memory +pids" >"/sys/fs/cgroup$group/cgroup.subtree_control"
    done
fi
for controller in "${version1[@]}"; do
    [[ -d /sys/fs/cgroup/$controller ]] || continue
    mkdir -p "/sys/fs/cgroup/$controller$CGROUP/control"
done
if [[ -d /sys/fs/cgroup/cpuset ]]; then # a new group may use nothing until told
    for group in "$all" "$CGROUP" "$CGROUP/control"; do
        for file in cpus mems; do
            cat "/sys/fs/cgroup/cpuset/cpuset.$file" >"/sys/fs/cgroup/cpuset$group/cpuset.$file"
        done
    done
fi

# One component, in a cgroup of its own so that its CPU time and memory can be read. It is started
# again if it ends, as an init system would; a test that restarts one kills it.
run() { # NAME COMMAND...
    local name=$1
    shift
    (
        for controller in cpu cpuacct memory pids ""; do
            group=/sys/fs/cgroup${controller:+/$controller}$CGROUP/control
            [[ -e $group/cgroup.procs ]] || continue
            mkdir -p "$group/$name" && echo "$BASHPID" >"$group/$name/cgroup.procs"
        done
        while :; do
            "$@" >>"$LOG/$name.log" 2>&1 &
            echo $! >"$STATE/$name.pid"
            wait $!
            echo "$name ended with $?: started again" >>"$LOG/node.log"
            sleep 0.5
        done
    ) &
}

import_images() {
    until_true 3000 ctr --namespace k8s.io version
    local image mark name present
    present=$(ctr --namespace k8s.io images ls --quiet)
    for image in "$BIN"/images/*.tar "$IMAGES"/*.tar; do
        [[ -e $image ]] || continue
        # The content store outlives the cluster; only what changed is imported, or what a kubelet has
        # removed because the disk was full.
        mark=/var/lib/containerd/imported.$(basename "$image").$(sha256sum "$image" | cut -c1-16)
        name=$(tar -xOf "$image" index.json | sed 's/.*"io.containerd.image.name": *"\([^"]*\)".*/\1/')
        [[ -e $mark ]] && grep --quiet --line-regexp --fixed-strings "$name" <<<"$present" && continue
        ctr --namespace k8s.io images import "$image" >>"$LOG/import.log" 2>&1 && touch "$mark"
    done
}

kube=$BIN/kube
run containerd containerd --config "$CONF/containerd.toml"
if ((number == 1)); then
    run etcd "$kube" etcd --unsafe-no-fsync --name node1 --data-dir "$STATE/etcd" --log-level=warn \
        --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
        --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
        --initial-cluster node1=http://127.0.0.1:2380 --auto-compaction-retention=5m
    run apiserver "$kube" kube-apiserver --etcd-servers=http://127.0.0.1:2379 --service-cluster-ip-range="$(both "$SERVICE_CIDR4" "$SERVICE_CIDR6")" \
        --advertise-address="${NODE_IP4:-$NODE_IP6}" --bind-address="$ANY" --secure-port=6443 \
        --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" --client-ca-file="$PKI/ca.crt" \
        --token-auth-file="$CONF/tokens.csv" --authorization-mode=Node,RBAC \
        --enable-admission-plugins=NodeRestriction --allow-privileged=true --profiling=false --request-timeout=5m \
        --service-account-issuer=https://kubernetes.default.svc.cluster.local \
        --service-account-key-file="$PKI/sa.pub" --service-account-signing-key-file="$PKI/sa.key" \
        --kubelet-client-certificate="$PKI/apiserver-kubelet.crt" --kubelet-client-key="$PKI/apiserver-kubelet.key" \
        --kubelet-preferred-address-types=InternalIP --kubelet-certificate-authority="$PKI/ca.crt" \
        --requestheader-client-ca-file="$PKI/ca.crt" --requestheader-allowed-names=front-proxy-client \
        --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
        --requestheader-extra-headers-prefix=X-Remote-Extra- \
        --proxy-client-cert-file="$PKI/front-proxy.crt" --proxy-client-key-file="$PKI/front-proxy.key"
fi
import_images

alive() {
    curl --silent --cacert "$PKI/ca.crt" "$@" "https://$NODE_HOST:6443/livez/ping"
}
if ((number > 1)); then
    until_true 3000 alive # whatever it says: a kubelet asks until it is answered
else
    until_true 3000 alive --fail --header "Authorization: Bearer $(sed -n 's/,admin,.*//p' "$CONF/tokens.csv")"
    run controller-manager "$kube" kube-controller-manager --kubeconfig="$CONF/controller-manager.kubeconfig" \
        --service-account-private-key-file="$PKI/sa.key" --root-ca-file="$PKI/ca.crt" --use-service-account-credentials=true \
        --cluster-signing-cert-file="$PKI/ca.crt" --cluster-signing-key-file="$PKI/ca.key" --leader-elect=false \
        --allocate-node-cidrs=false --bind-address=127.0.0.1 --kube-api-qps=200 --kube-api-burst=400 --profiling=false
    run scheduler "$kube" kube-scheduler --kubeconfig="$CONF/scheduler.kubeconfig" --leader-elect=false \
        --bind-address=127.0.0.1 --profiling=false
fi
# A kubelet samples a container's processor time only every 10 to 15 s by default, on a busy machine more rarely.
run kubelet "$kube" kubelet --kubeconfig="$CONF/kubelet.kubeconfig" --config="$CONF/kubelet.yaml" \
    --hostname-override="node$number" --node-ip="$(both "$ip4" "$ip6")" --housekeeping-interval=5s --v=2
run proxy "$kube" kube-proxy --config="$CONF/proxy.yaml" --v=1
touch "$STATE/started"

trap 'exit 0' TERM INT
while :; do # process 1 reaps what pods leave behind
    wait -n
    (($? > 128)) && exit 0
    sleep 0.2
done
