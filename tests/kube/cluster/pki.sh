#!/usr/bin/env bash
# The cluster's certificates (ECDSA P-256, a month), made anew for each cluster in under a second.
set -euo pipefail
. "$(dirname "$0")/env.sh"
umask 077
mkdir -p "$PKI"
cd "$PKI"

key() {
    openssl ecparam -name prime256v1 -genkey -noout -out "$1" 2>/dev/null
}
issue() { # NAME SUBJECT USE [NAMES]
    key "$1.key"
    openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out "$1.crt" 2>/dev/null \
        -extfile <(printf 'keyUsage=critical,digitalSignature\nextendedKeyUsage=%s\n%s\n' "$3" "${4:+subjectAltName=$4}")
}

key ca.key
openssl req -x509 -new -key ca.key -subj /CN=test-ca -days 30 -out ca.crt \
    -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature 2>/dev/null
issue apiserver /CN=kube-apiserver serverAuth \
    "IP:127.0.0.1,IP:${NODE_IP4:-$NODE_IP6},IP:$FIRST_SERVICE,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
issue apiserver-kubelet /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth
for ((number = 1; number <= NODES; number++)); do
    own=$(node_state "$number")/pki
    mkdir -p "$own"
    ip4=$(node_ip4 "$number")
    issue "$own/kubelet" "/CN=node$number" serverAuth "IP:${ip4:-$(node_ip6 "$number")},DNS:node$number"
    ((number == 1)) || cp ca.crt "$own"
done
issue front-proxy /CN=front-proxy-client clientAuth
key sa.key
openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null
