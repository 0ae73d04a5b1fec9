#!/bin/sh
# Installs tulle from the files of a release, after it has checked that they are the releaser's, and removes it again.
# It needs tar, gzip, sha256sum, for signatures ssh-keygen (OpenSSH 8.1 or newer), and for a URL curl or wget. Every POSIX
# shell runs it: dash, busybox, bash.
set -eu
umask 022
LC_ALL=C
export LC_ALL

# Whoever makes a release may write a key here (KEY= of make release). It is worth as much as the way on which you got this
# file.
key=""

usage() {
    cat <<'END'
Install tulle from a release, or remove it

Usage: install.sh [OPTIONS] FROM [VERSION]
       install.sh --uninstall [--prefix DIRECTORY]

  FROM                  the directory or URL in which the release's files are
  VERSION               refuse another version than this one

Options:
      --key FILE|LINE       Take only what is signed with this key: a file as id_ed25519.pub, or its line
      --unsigned            Take what nobody signed: then only accidents are found, not whoever replaces the files
      --prefix DIRECTORY    Install there, with programs in DIRECTORY/bin (default: /usr/local)
      --uninstall           Remove what this script installed there, and nothing else; not while a service starts it
  -h, --help                Print help

Exit codes: 0 done; 1 failed; 64 wrong command line; 65 files are not what the release says.
END
}

say() {
    echo "$*"
}

# The deepest first; those in which somebody else has something stay.
remove_directories() {
    sed -n 's/^directory //p' "$work/list" | sort -ru | while read -r path; do
        rmdir "$prefix/${path#.}" 2>/dev/null || true
    done
}

# Ends with a code: what is wrong, and below it what to do.
stop() { # CODE WHAT [WHAT TO DO]
    echo "error: $2" >&2
    [ $# -lt 3 ] || echo "  what to do: $3" >&2
    exit "$1"
}

needs() { # PROGRAM...
    for program in "$@"; do
        command -v "$program" >/dev/null 2>&1 || stop 1 "there is no program $program on the PATH" "install it, then run this again"
    done
}

work=
staged=
clean() {
    # Not finished: as if nothing had been begun.
    if [ -n "$staged" ]; then
        while read -r path; do
            rm -f "$prefix/$path.tulle-new" || true
        done <"$work/paths"
        rm -f "$list.tulle-new" || true
        remove_directories
    fi
    [ -z "$work" ] || rm -rf "$work"
}

sum_of() { # FILE
    sha256sum <"$1" | cut -c 1-64
}

fetch() { # NAME
    case $from in
    http://* | https://*)
        if command -v curl >/dev/null 2>&1; then
            curl --fail --silent --show-error --location --output "$work/$1" "$from/$1"
        elif command -v wget >/dev/null 2>&1; then
            wget -q -O "$work/$1" "$from/$1"
        else
            stop 1 "there is neither curl nor wget to get $from/$1 with" "install one, or copy the release's files into a directory"
        fi
        ;;
    *) cp "$from/$1" "$work/$1" ;;
    esac || stop 1 "cannot get $from/$1" "look whether FROM is where the release's files are"
}

check_signature() {
    if [ -z "$key" ]; then
        if [ -z "$unsigned" ]; then
            stop 64 "no key is known with which the release should be signed" \
                "name the releaser's key with --key, or take unsigned files with --unsigned"
        fi
        say "note: nobody vouches for these files: --unsigned looks at checksums only"
        return
    fi
    needs ssh-keygen
    # A line of a file may end with a comment; another line may be an option of SSH's own.
    # shellcheck disable=SC2086
    set -- $key
    case ${1:-} in
    ssh-* | ecdsa-* | sk-*) ;;
    *) stop 64 "this is no SSH key: '${1:-}'" "name a file such as id_ed25519.pub, or its line in quotes" ;;
    esac
    echo "tulle namespaces=\"tulle-release\" $1 ${2:-}" >"$work/signers"
    echo "$1 ${2:-}" >"$work/key"
    print=$(ssh-keygen -l -f "$work/key" 2>/dev/null | cut -d ' ' -f 2) || print=
    [ -n "$print" ] || stop 64 "ssh-keygen cannot read this key: $1 ${2:-}"
    fetch SHA256SUMS.sig
    if ! ssh-keygen -Y verify -f "$work/signers" -I tulle -n tulle-release -s "$work/SHA256SUMS.sig" \
        <"$work/SHA256SUMS" >"$work/said" 2>&1; then
        stop 65 "SHA256SUMS is not signed with the key $print: $(tail -n 1 "$work/said")" \
            "do not use these files; ask the releaser which key is theirs"
    fi
    say "SHA256SUMS is signed with the key $print"
}

check_prefix() {
    case $prefix in
    '' | /*) ;;
    *) prefix=$PWD/$prefix ;;
    esac
    case $(cd "$prefix/" 2>/dev/null && pwd -P) in
    / | //) stop 64 "--prefix must not be the root directory" "name a directory such as /usr/local" ;;
    esac
    list=$prefix/share/tulle/installed
}

# Lines of the list: `version VERSION`, `file SHA256 PATH`, `directory PATH` for one that was not there; paths are below the prefix
# and have no blanks.
is_ours() { # PATH
    [ -e "$list" ] && [ -f "$prefix/$1" ] && grep -Fqx "file $(sum_of "$prefix/$1") $1" "$list"
}

make_directories() { # PATH: those above it which are missing, each one noted
    rest=$1
    made=
    while [ "${rest#*/}" != "$rest" ]; do
        made=$made${made:+/}${rest%%/*}
        rest=${rest#*/}
        if [ ! -d "$prefix/$made" ]; then
            mkdir "$prefix/$made" || stop 1 "cannot make the directory $prefix/$made" "run this as root, or choose another --prefix"
            echo "directory $made" >>"$work/list"
        fi
    done
}

install_release() {
    needs tar gzip sha256sum cut grep sed awk find sort sync
    [ "$(uname -s)" = Linux ] || stop 1 "tulle runs on Linux; this is $(uname -s)"
    case $(uname -m) in
    x86_64) arch=amd64 ;;
    aarch64) arch=arm64 ;;
    armv7l | armv8l) arch=armv7 ;;
    riscv64) arch=riscv64 ;;
    *) stop 1 "there are no programs for $(uname -m) in a release" "docs/install.md says for which there are" ;;
    esac
    case $from in
    http://*)
        [ -z "$unsigned" ] || stop 64 "--unsigned with http://: anybody on the way could replace the files" "use https:// or --key"
        ;;
    https://*) ;;
    *) [ -d "$from" ] || stop 64 "$from is no directory" "name the directory or URL in which SHA256SUMS is" ;;
    esac
    work=$(mktemp -d)
    trap clean EXIT
    trap 'exit 1' HUP INT TERM
    fetch SHA256SUMS
    check_signature

    found=$(sed -n "s/^[0-9a-f]\{64\}  \(tulle-[0-9][0-9A-Za-z.+-]*-linux-$arch\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS")
    case $(echo "$found" | grep -c .) in
    0) stop 65 "SHA256SUMS of $from names no programs for $arch" ;;
    1) ;;
    *) stop 65 "SHA256SUMS of $from names several releases for $arch" "keep each release in a directory of its own" ;;
    esac
    version=${found#tulle-}
    version=${version%-linux-"$arch".tar.gz}
    if [ -n "$wanted" ] && [ "$wanted" != "$version" ]; then
        stop 65 "$from has tulle $version, not $wanted"
    fi
    fetch "$found"
    said=$(awk -v file="$found" '$2 == file { print $1 }' "$work/SHA256SUMS")
    is=$(sum_of "$work/$found")
    if [ "$said" != "$is" ]; then
        stop 65 "$found is not the file of the release: its SHA-256 is $is, and SHA256SUMS says $said" \
            "get it again; if it stays so, do not use it"
    fi
    say "$found is the file that SHA256SUMS names"
    mkdir "$work/files"
    gzip -dc "$work/$found" | tar -xf - -C "$work/files"
    tree=$work/files/tulle-$version-linux-$arch
    (cd "$tree" && find . -type f) | sed 's|^\./||' | sort >"$work/paths"
    if grep -q '[^A-Za-z0-9._/+-]' "$work/paths" || ! [ -s "$work/paths" ]; then
        stop 65 "$found has no files, or names that a release has not: $(grep '[^A-Za-z0-9._/+-]' "$work/paths" | head -n 1)"
    fi

    # Other people's files stay.
    while read -r path; do
        if { [ -e "$prefix/$path" ] || [ -L "$prefix/$path" ]; } && ! is_ours "$path"; then
            stop 1 "$prefix/$path is there, and this script did not install it, or somebody has changed it since" \
                "move it away, or choose another --prefix"
        fi
    done <"$work/paths"

    echo "version $version" >"$work/list"
    staged=yes
    if [ ! -d "$prefix" ]; then
        mkdir -p "$prefix" || stop 1 "cannot make the directory $prefix" "run this as root, or choose another --prefix"
        echo "directory ." >>"$work/list"
    fi
    while read -r path; do
        make_directories "$path"
        new=$prefix/$path.tulle-new
        if ! { rm -f "$new" && cp "$tree/$path" "$new"; }; then
            stop 1 "cannot write $new" "run this as root, or choose another --prefix"
        fi
        if [ -x "$tree/$path" ]; then chmod 755 "$new"; else chmod 644 "$new"; fi
        sum=$(sum_of "$new")
        echo "file $sum $path" >>"$work/list"
    done <"$work/paths"
    make_directories share/tulle/installed

    # From here on the list has what was there and what will be: whoever is interrupted runs this again, or --uninstall.
    before=
    if [ -e "$list" ]; then
        before=$(sed -n 's/^version //p' "$list" | head -n 1)
        cp "$list" "$work/before"
        grep '^directory ' "$list" >>"$work/list" || true
    else
        : >"$work/before"
    fi
    { cat "$work/list" && sed -n '/^file /p' "$work/before"; } >"$list.tulle-new" || stop 1 "cannot write $list.tulle-new"
    # After a power cut a file system may have a name and not yet what is in the file.
    sync
    mv -f "$list.tulle-new" "$list"
    staged=
    # A program that runs goes on with the file it was started from.
    while read -r path; do
        mv -f "$prefix/$path.tulle-new" "$prefix/$path"
    done <"$work/paths"
    # Files that this version has no more.
    sed -n 's/^file [0-9a-f]* //p' "$work/before" | while read -r path; do
        grep -Fqx "$path" "$work/paths" || ! is_ours "$path" || rm -f "$prefix/$path"
    done
    cp "$work/list" "$list.tulle-new"
    sync
    mv -f "$list.tulle-new" "$list"
    sync

    say "installed tulle $version into $prefix${before:+, where $before was}: $(grep -c . "$work/paths") files, which $list names"
    case :$PATH: in
    *":$prefix/bin:"*) ;;
    *) say "note: $prefix/bin is not on your PATH" ;;
    esac
    say "'tulle service install FILE' starts a mesh at boot; 'install.sh --uninstall --prefix $prefix' removes these files"
}

# The unit of a service would stay and fail at every boot. scripts/release/prerm says the same of packages.
refuse_if_started() {
    refused=
    # The unit has the path without symbolic links.
    real=$(cd "$prefix/bin" 2>/dev/null && pwd -P) || real=$prefix/bin
    for file in /etc/systemd/system/*.service /etc/init.d/*; do
        [ -f "$file" ] || continue
        # The last line of what `tulle service install` writes.
        # shellcheck disable=SC2016
        grep -F '# Written by `tulle service install`; checksum ' "$file" >/dev/null || continue
        for program in "$prefix/bin/tulle" "$real/tulle"; do
            # Quoted or not, it is the same program; one line of a unit, or of a script of OpenRC.
            plain=$(printf '%s\n' "$program" | without_quotes)
            without_quotes <"$file" >"$work/service"
            grep -F "ExecStart=$plain " "$work/service" >/dev/null || grep -Fx "command=$plain" "$work/service" >/dev/null || continue
            # It reloads the same mesh.
            uninstall=$(sed -n 's/^ExecReload=//; s/^[[:space:]]*//; s/ service reload/ service uninstall/p' "$file")
            (stop 1 "$file starts $program at boot, and would fail at every boot without it" \
                "run '${uninstall:-$program service uninstall}' as root, then remove tulle again") || refused=yes
            break
        done
    done
    [ -z "$refused" ] || exit 1
}

without_quotes() {
    tr -d '"'\''\\$%'
}

uninstall() {
    needs sha256sum cut grep sed sort tr
    [ -e "$list" ] || stop 1 "$list is not there: this script has installed nothing in $prefix" "name the --prefix of the installation"
    version=$(sed -n 's/^version //p' "$list" | head -n 1)
    work=$(mktemp -d)
    trap clean EXIT
    refuse_if_started
    cp "$list" "$work/list"
    removed=0
    sed -n 's/^file [0-9a-f]* //p' "$work/list" | sort -u >"$work/paths"
    while read -r path; do
        rm -f "$prefix/$path.tulle-new"
        if is_ours "$path"; then
            rm -f "$prefix/$path" || stop 1 "cannot remove $prefix/$path" "run this as whoever installed it"
            removed=$((removed + 1))
        elif [ -e "$prefix/$path" ]; then
            say "note: $prefix/$path stays: somebody has changed it since it was installed"
        fi
    done <"$work/paths"
    rm -f "$list" "$list.tulle-new"
    remove_directories
    say "removed tulle $version from $prefix: $removed files"
    say "What meshes have stored stays, in /var/lib/tulle or where --state said. 'tulle down --purge' removes it, before this."
}

from='' wanted='' unsigned='' remove='' named='' prefix=/usr/local
while [ $# -gt 0 ]; do
    case $1 in
    --key | --prefix)
        [ -n "${2:-}" ] || stop 64 "$1 needs a value"
        if [ "$1" = --prefix ]; then
            prefix=${2%/}
        elif [ -f "$2" ]; then
            named=$(grep -v -e '^#' -e '^[[:space:]]*$' "$2" | head -n 1)
            [ -n "$named" ] || stop 64 "there is no key in $2" "name a file such as id_ed25519.pub, or its line in quotes"
        else
            named=$2
        fi
        shift
        ;;
    --unsigned) unsigned=yes ;;
    --uninstall) remove=yes ;;
    -h | --help)
        usage
        exit 0
        ;;
    -*) stop 64 "there is no option $1" "install.sh --help lists them" ;;
    *)
        if [ -z "$from" ]; then
            from=${1%/}
        elif [ -z "$wanted" ]; then
            wanted=${1#v}
        else
            stop 64 "too many arguments: $1"
        fi
        ;;
    esac
    shift
done
[ -z "$unsigned" ] || [ -z "$named" ] || stop 64 "--key and --unsigned contradict each other"
key=${named:-$key}
[ -z "$unsigned" ] || key=
check_prefix
if [ -n "$remove" ]; then
    [ -z "$from" ] || stop 64 "--uninstall takes no FROM"
    uninstall
elif [ -z "$from" ]; then
    stop 64 "FROM is missing: the directory or URL in which the release's files are" "install.sh --help lists the arguments"
else
    install_release
fi
