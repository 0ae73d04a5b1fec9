#!/usr/bin/env bash
# Makes a release in build/release: for each architecture static programs as .tar.gz, .deb and .rpm with man pages,
# completions and licences, the demo, and a bill of materials (CycloneDX); OCI images, Helm charts, install.sh, a statement
# how all that was made (in-toto, SLSA), SHA256SUMS, and a signature of it. It needs no daemon, and no network but registries. The
# same commit gives the same bytes; docs/install.md says under which conditions.
#
#   KEY=FILE scripts/release.sh                            signs with this SSH key (a public one: by the agent that has the other)
#   ARCH=amd64 scripts/release.sh                          some of amd64, arm64, armv7 and riscv64; the last gets no images
#   REGISTRY=registry.example/tulle scripts/release.sh     the registry that will have the images; by default localhost
#   MAINTAINER="NAME <ADDRESS>" scripts/release.sh         whoever answers for the packages
#   OUTPUT=DIRECTORY scripts/release.sh                    another place than build/release
#   PROFILE=dev scripts/release.sh                         to try the script: of a debug build, also of changes without a commit
#   PROGRAMS=DIRECTORY scripts/release.sh                  to try the script, too: packs DIRECTORY/ARCH/PROGRAM and makes no images
#   PAGES=DIRECTORY scripts/release.sh                     man pages and completions that `tulle-man` has written there already
#   DOCS=DIRECTORY scripts/release.sh                      the documentation as `make docs` makes it; by default build/docs
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C
umask 022

: "${ARCH:=amd64 arm64 armv7 riscv64}" "${PROFILE:=release}" "${REGISTRY:=localhost}" "${OUTPUT:=build/release}" "${KEY:=}"
: "${PROGRAMS:=}" "${PAGES:=}" "${DOCS:=build/docs}" "${MAINTAINER:=Tulle developers <developers@tulle.invalid>}"
read -ra architectures <<<"$ARCH"
own=$(scripts/target.sh --own)
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
release=(python3 -B scripts/release)

usage() {
    echo "error: $*" >&2
    exit 64
}

fail() {
    echo "error: $*" >&2
    exit 1
}

have_images=()
for arch in "${architectures[@]}"; do
    case $arch in
    amd64 | arm64 | armv7) have_images+=("$arch") ;;
    # docs/install.md says why not.
    riscv64) ;;
    *) usage "ARCH=$ARCH: releases are made for amd64, arm64, armv7 and riscv64" ;;
    esac
done
((${#architectures[@]})) || usage "ARCH is empty: write amd64, arm64, armv7, riscv64 or several of them"
[[ $MAINTAINER =~ ^[^\<\>]+\ \<[^\<\>\ ]+@[^\<\>\ ]+\>$ ]] || usage "MAINTAINER=$MAINTAINER: write NAME <ADDRESS>"
if [[ $KEY ]]; then
    [[ -r $KEY ]] || usage "KEY=$KEY: there is no such file, or it cannot be read"
    public=$(ssh-keygen -y -P '' -f "$KEY" 2>/dev/null || cat "$KEY.pub" 2>/dev/null || cat "$KEY")
    public=$(awk '{ print $1, $2; exit }' <<<"$public")
    ssh-keygen -l -f <(echo "$public") >/dev/null 2>&1 ||
        usage "KEY=$KEY: this is no SSH key, or its public half is not beside it as $KEY.pub"
fi

# OUTPUT is replaced as a whole: only an empty directory is, or a release to which nobody has added anything.
check_output() {
    local names path
    [[ -e $OUTPUT || -L $OUTPUT ]] || return 0
    if [[ -d $OUTPUT ]]; then
        [[ $(ls -A "$OUTPUT") ]] || return 0
        if names=$(sed -n 's/^[0-9a-f]\{64\}  //p' "$OUTPUT/SHA256SUMS" 2>/dev/null) &&
            grep -q '^tulle-.*\.provenance\.json$' <<<"$names"; then
            while IFS= read -r -d '' path; do
                if ! [[ -f $path ]] || ! grep -Fqx -e "${path##*/}" <<<"$names"$'\nSHA256SUMS\nSHA256SUMS.sig'; then
                    usage "OUTPUT=$OUTPUT: ${path##*/} in it is of no release; move it away, or name another directory"
                fi
            done < <(find "$OUTPUT/" -mindepth 1 -maxdepth 1 -print0)
            return 0
        fi
    fi
    usage "OUTPUT=$OUTPUT: this is there and is no release; name another directory"
}
check_output

for program in dpkg-deb rpmbuild gzip cargo git ssh-keygen; do
    command -v "$program" >/dev/null || fail "there is no $program: make release installs what it needs on Debian"
done

for language in en zh; do
    [[ -e $DOCS/$language/index.html ]] || fail "there is no $DOCS/$language/index.html: make docs makes it"
done

# What is not in the commit cannot be made again from it.
commit=$(git rev-parse --verify HEAD) || fail "this is no clone: a release is made of a commit"
changed=()
if [[ $(git status --porcelain --untracked-files=no) ]]; then
    [[ $PROFILE == dev || $PROGRAMS ]] ||
        fail "files differ from the commit ($(git status --porcelain --untracked-files=no | wc -l) of them): commit them first"
    changed=(--changed)
fi
# Pages that say what was true of the release before would be in this one for good.
if [[ $PROFILE != dev && ! $PROGRAMS ]]; then
    python3 -B scripts/docs check --strict >&2 ||
        fail "the documentation has faults, or translations that are behind their pages (above): CONTRIBUTING.md says how to mend them"
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct HEAD)
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/out"

target() { # ARCH
    scripts/target.sh --name "$1"
}

# The names that packages give to architectures.
of_deb() { # ARCH
    case $1 in armv7) echo armhf ;; *) echo "$1" ;; esac
}

of_rpm() { # ARCH
    case $1 in amd64) echo x86_64 ;; arm64) echo aarch64 ;; armv7) echo armv7hl ;; *) echo "$1" ;; esac
}

programs() { # ARCH
    local place=$PROFILE
    [[ $place != dev ]] || place=debug
    if [[ $PROGRAMS ]]; then
        echo "$PROGRAMS/$1"
    else
        echo "${CARGO_TARGET_DIR:-target}/$(target "$1")/$place"
    fi
}

build() {
    local image arch
    for arch in "${architectures[@]}"; do
        [[ " ${have_images[*]} " == *" $arch "* ]] || PROFILE=$PROFILE PLUGINS=yes FOR=packages scripts/build-static.sh "$arch"
    done
    ((${#have_images[@]})) || return 0
    ARCH="${have_images[*]}" STATIC=1 PROFILE=$PROFILE REGISTRY=$REGISTRY IMAGES=$work/images PLUGINS=yes FOR=release scripts/build-images.sh
    for image in "$work"/images/*.tar; do
        mv "$image" "$work/out/tulle-$version-image-$(basename "$image")"
    done
    mv "$work/images/values.yaml" "$work/out/tulle-$version-images.yaml"
}

# A bill of materials and licences are of all programs that a release has for an architecture.
bill() { # ARCH
    local program
    for program in tulle tulle-proxy tulle-envoy bookinfo; do
        [[ -f $(programs "$1")/$program ]] || fail "there is no $(programs "$1")/$program"
    done
    mkdir -p "$work/licences"
    "${release[@]}" libraries --version "$version" --target "$(target "$1")" --programs "$(programs "$1")" \
        --sbom "$work/out/tulle-$version-linux-$1.cdx.json" --licences "$work/licences/$1"
}

# Everything in a package or tarball but its own directories: bin, man, completions, doc.
contents() { # ARCH
    local arch=$1 place=$work/contents/$1 program
    mkdir -p "$place"/{bin,doc}
    for program in tulle tulle-proxy tulle-envoy; do
        install -m 755 "$(programs "$arch")/$program" "$place/bin/$program"
    done
    cp -r "$work/pages/man1" "$work/pages/completions" "$place"
    install -m 644 LICENSE README.md CHANGELOG.md "$place/doc"
    mkdir "$place/doc/html"
    cp -r "$DOCS/en" "$DOCS/zh" "$place/doc/html"
    cp "$work/licences/$arch" "$place/doc/LIBRARIES.txt"
}

# What `make demo` runs in a checkout, for whoever has none: its applications are nothing to install.
demo() { # ARCH
    local place=$work/demo/$1
    mkdir -p "$place"
    install -m 755 "$(programs "$1")/bookinfo" "$place/bookinfo"
    sed 's|^  workingDirectory: \.\.$|  workingDirectory: .|; s|\[target/release/bookinfo, |[./bookinfo, |' demo/mesh.yaml >"$place/mesh.yaml"
    cp LICENSE demo/deny-ratings.yaml "$place"
    cp "$work/licences/$1" "$place/LIBRARIES.txt"
    "${release[@]}" tar "$place" "$work/out/tulle-demo-$version-linux-$1.tar.gz"
}

# The same files as people have them below /usr/local, or as a package has them below /usr.
tree() { # ARCH DIRECTORY ZSH
    local from=$work/contents/$1 to=$2
    mkdir -p "$to"/{bin,share/man/man1,share/bash-completion/completions,share/fish/vendor_completions.d,"share/zsh/$3"}
    mkdir -p "$to/share/doc/tulle"
    cp "$from"/bin/* "$to/bin"
    cp "$from"/man1/* "$to/share/man/man1"
    cp "$from/completions/tulle.bash" "$to/share/bash-completion/completions/tulle"
    cp "$from/completions/tulle.fish" "$to/share/fish/vendor_completions.d/tulle.fish"
    cp "$from/completions/_tulle" "$to/share/zsh/$3/_tulle"
    cp -r "$from"/doc/* "$to/share/doc/tulle"
}

tarball() { # ARCH
    local name=tulle-$version-linux-$1
    tree "$1" "$work/tarball/$1" site-functions
    "${release[@]}" tar "$work/tarball/$1" "$work/out/$name.tar.gz"
}

same_times() { # DIRECTORY
    find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

unit() { # DIRECTORY
    install -D -m 644 deploy/systemd/tulle.service "$1/usr/lib/systemd/system/tulle.service"
}

deb() { # ARCH
    local root=$work/deb/$1 doc
    doc=$root/usr/share/doc/tulle
    mkdir -p "$root"/{DEBIAN,etc}
    tree "$1" "$root/usr" vendor-completions
    install -d -m 750 "$root/etc/tulle"
    {
        printf 'tulle (%s-1) unstable; urgency=medium\n\n  * CHANGELOG.md.gz beside this file has what changed.\n\n' "$version"
        printf ' -- %s  %s\n' "$MAINTAINER" "$(date --utc --rfc-email --date="@$SOURCE_DATE_EPOCH")"
    } >"$doc/changelog.Debian"
    {
        printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: tulle\n\n'
        printf 'Files: *\nCopyright: %s The authors of Tulle\nLicense: Apache-2.0\n' \
            "$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y)"
        printf ' On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n'
        printf 'Comment: Licences of the libraries in the programs are in LIBRARIES.txt.gz beside this file.\n'
    } >"$doc/copyright"
    rm "$doc/LICENSE"
    gzip -9n "$root"/usr/share/man/man1/* "$doc/changelog.Debian" "$doc/CHANGELOG.md" "$doc/LIBRARIES.txt"
    unit "$root"
    {
        printf 'Package: tulle\nVersion: %s-1\nArchitecture: %s\nMaintainer: %s\n' "$version" "$(of_deb "$1")" "$MAINTAINER"
        printf 'Installed-Size: %s\n' "$(du -k --apparent-size -s "$root/usr" | cut -f1)"
        printf 'Section: net\nPriority: optional\nDepends: passwd\nRecommends: iproute2, nftables\n'
        printf 'Description: light service mesh\n'
        printf ' Mutual TLS with a verified identity on every hop, policy, metrics and\n'
        printf ' routing, on one host without Kubernetes, and on Kubernetes. This package\n'
        printf ' has the command tulle, the sidecar tulle-proxy, and an agent for Envoy as\n'
        printf ' a sidecar. Nothing is started: "systemctl enable --now tulle" starts the mesh of\n'
        printf ' /etc/tulle/mesh.yaml, now and at each boot.\n'
    } >"$root/DEBIAN/control"
    install -m 755 scripts/release/deb/postinst scripts/release/deb/postrm scripts/release/prerm "$root/DEBIAN"
    same_times "$root"
    # As many threads as this machine has processors would be other bytes.
    DPKG_DEB_THREADS_MAX=1 dpkg-deb --root-owner-group -Zxz --build "$root" "$work/out/tulle_${version}-1_$(of_deb "$1").deb" >/dev/null
}

rpm_package() { # ARCH
    local root=$work/rpm/$1/root top=$work/rpm/$1/top
    mkdir -p "$root/etc" "$top"
    tree "$1" "$root/usr" site-functions
    install -d -m 750 "$root/etc/tulle"
    gzip -9n "$root"/usr/share/man/man1/* "$root/usr/share/doc/tulle/LIBRARIES.txt"
    unit "$root"
    same_times "$root"
    # A database of its own: the machine's is none of its business, and Debian has none.
    rpmbuild -bb --quiet --target "$(of_rpm "$1")-linux" --define "_topdir $top" --define "_dbpath $top/db" \
        --define "tulle_version $version" --define "tulle_root $root" --define "tulle_packager $MAINTAINER" \
        --define "tulle_prerm $PWD/scripts/release/prerm" \
        scripts/release/tulle.spec >"$work/rpm.log" 2>&1 || {
        cat "$work/rpm.log" >&2
        fail "rpmbuild could not make the package for $1"
    }
    mv "$top/RPMS/$(of_rpm "$1")/tulle-$version-1.$(of_rpm "$1").rpm" "$work/out/"
}

of_tool() { # COMMAND...
    if command -v "$1" >/dev/null; then "$@" 2>&1 | sed 1q; else echo none; fi
}

provenance() {
    local arch options=() compiler
    for arch in "${architectures[@]}"; do
        case $arch in
        "$own") compiler=musl-gcc ;;
        amd64) compiler=x86_64-linux-gnu-gcc ;;
        arm64) compiler=aarch64-linux-gnu-gcc ;;
        armv7) compiler=arm-linux-gnueabihf-gcc ;;
        *) compiler=$arch-linux-gnu-gcc ;;
        esac
        options+=(--tool "cc for $arch=$(of_tool "$compiler" --version)")
    done
    if command -v dpkg-query >/dev/null; then
        options+=(--tool "musl-dev=$(dpkg-query -Wf '${Version}' musl-dev 2>/dev/null || echo none)")
        options+=(--tool "nftables=$(dpkg-query -Wf '${Version}' nftables 2>/dev/null || echo none)")
    fi
    "${release[@]}" provenance "$work/out/tulle-$version.provenance.json" --commit "$commit" "${changed[@]}" \
        --setting "command=make release" --setting "ARCH=$ARCH" --setting "PROFILE=$PROFILE" --setting "REGISTRY=$REGISTRY" \
        --setting "MAINTAINER=$MAINTAINER" --setting "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH" \
        --setting "programs=$([[ $PROGRAMS ]] && echo "made before, elsewhere" || echo "built of the commit")" \
        --tool "rustc=$(of_tool rustc --version)" --tool "cargo=$(of_tool cargo --version)" \
        --tool "dpkg-deb=$(of_tool dpkg-deb --version)" --tool "rpmbuild=$(of_tool rpmbuild --version)" \
        --tool "python3=$(of_tool python3 --version)" --tool "gzip=$(of_tool gzip --version)" "${options[@]}" "$work"/out/*
}

if [[ $PAGES ]]; then
    cp -r "$PAGES" "$work/pages"
else
    # Of this machine: what is in the release may be of another.
    cargo build --quiet --locked --package tulle-man
    "${CARGO_TARGET_DIR:-target}/debug/tulle-man" "$work/pages"
fi
[[ $PROGRAMS ]] || build
for arch in "${architectures[@]}"; do
    bill "$arch"
    contents "$arch"
    tarball "$arch"
    demo "$arch"
    deb "$arch"
    rpm_package "$arch"
done
for chart in tulle tulle-crds; do
    "${release[@]}" chart "deploy/charts/$chart" "$work/out"
done
cp LICENSE "$work/out/LICENSE"
# Whoever has this file from somebody they trust need not name the key.
sed "s|^key=\"\"|key=\"${public:-}\"|" scripts/install.sh >"$work/out/install.sh"
chmod 755 "$work/out/install.sh"
provenance
(cd "$work/out" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
if [[ $KEY ]]; then
    ssh-keygen -q -Y sign -f "$KEY" -n tulle-release "$work/out/SHA256SUMS" >/dev/null ||
        fail "KEY=$KEY: ssh-keygen could not sign with it"
fi
rm -rf "$OUTPUT"
mkdir -p "$(dirname "$OUTPUT")"
mv "$work/out" "$OUTPUT"

(cd "$OUTPUT" && stat --format '%n %s' -- * | awk '{ printf "%s: %.1f MiB\n", $1, $2 / 1048576 }')
echo "$OUTPUT: tulle $version for ${architectures[*]} of commit ${commit:0:12}${changed:+ with changes}"
if [[ $KEY ]]; then
    echo "signed with $(ssh-keygen -l -f <(echo "$public") | cut -d' ' -f2); give people this line: $public"
else
    echo "note: nothing is signed, because no KEY was named: nobody can tell who made these files"
fi
if [[ $(git tag --points-at HEAD) != *"v$version"* ]]; then
    echo "note: the commit has no tag v$version, so this is a trial"
elif ! grep -q "^## \[$version\]" CHANGELOG.md; then
    echo "note: CHANGELOG.md has no section [$version]"
fi
