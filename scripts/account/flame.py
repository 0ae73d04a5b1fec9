"""A flame graph of what perf has recorded, as SVG; and how much of it was what."""

import collections
import html
import re
import subprocess

WIDTH, MARGIN, HEIGHT, TOP = 1200, 10, 16, 64
# Frames narrower than this, in pixels, are left out.
NARROWEST = 0.6
LETTER = 6.3
KINDS = [
    ("kernel", "#f0a35e"),
    ("Tulle", "#7fb2e5"),
    ("tokio, mio", "#b9c4d0"),
    ("TLS, AES-GCM", "#8fce9b"),
    ("HTTP parser", "#c9b3e6"),
    ("other", "#dddddd"),
]
COLOURS = dict(KINDS)
# Below these is nothing but the event loop, and on the kernel's side the entry.
LOOP = re.compile(r"task::(harness|core|raw)|Harness<|run_task|block_on|Scoped<|Context::(park|run)")
ENTRY = re.compile(r"^(entry_SYSCALL_64|do_syscall_64|__x64_sys_|x64_sys_call|__sys_)")
# System calls, grouped for the summary of the kernel's time.
CALLS = {
    "sendto": "send",
    "sendmsg": "send",
    "write": "send",
    "writev": "send",
    "recvfrom": "recv",
    "recvmsg": "recv",
    "read": "recv",
    "readv": "recv",
    "epoll_wait": "epoll_wait",
    "epoll_pwait": "epoll_wait",
}


def stacks(data):
    """Yields the process and the frames of each sample, the outermost first."""
    done = subprocess.run(
        ["perf", "script", "-i", str(data), "--no-inline", "-F", "pid,ip,sym,dso"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    pid, frames = None, []
    for line in done.stdout.decode(errors="replace").splitlines():
        if not line.strip():
            if pid is not None:
                yield pid, frames[::-1]
            pid, frames = None, []
        elif not line[0].isspace() or pid is None:
            pid = int(line.split()[0])
        else:
            _, _, rest = line.strip().partition(" ")
            symbol, _, place = rest.rpartition(" (")
            frames.append((symbol, place.rstrip(")")))
    if pid is not None:
        yield pid, frames[::-1]


def kind(symbol, place):
    if "kernel" in place or place.startswith("[") and "unknown" not in place:
        return "kernel"
    if re.search(r"aws_lc|aesni|tulle_tls|rustls|gcm|EVP_|OPENSSL|SSL_", symbol):
        return "TLS, AES-GCM"
    if re.search(r"tokio|mio::", symbol):
        return "tokio, mio"
    if re.search(r"httparse|tulle_http1", symbol):
        return "HTTP parser"
    return "Tulle" if "tulle" in symbol else "other"


def shown(frames):
    """Without what every stack has in common; with the system call's name where it begins."""
    last = max((i for i, (symbol, _) in enumerate(frames) if LOOP.search(symbol)), default=-1)
    found = []
    for symbol, place in frames[last + 1 :]:
        if not ENTRY.search(symbol) and "unknown" not in symbol:
            found.append((tidy(symbol), kind(symbol, place)))
    return found or [("event loop", "tokio, mio")]


def tidy(symbol):
    symbol = re.sub(r"<([\w:]+(?:<\w+>)?) as [^>]+>", r"\1", symbol)
    symbol = symbol.replace("{{closure}}", "{}").replace("tulle_proxy::", "")
    return re.sub(r"::h[0-9a-f]{16}$|\.llvm\.\d+$", "", symbol)


def asked_for(frames):
    """The system call that a stack is in, or user space."""
    for symbol, _ in frames:
        call = re.match(r"(?:__x64_sys|ksys|do)_(write|writev|read|readv)$|__x64_sys_(\w+)", symbol)
        if call:
            name = call[1] or call[2]
            return CALLS.get(name, name)
    kernel = any(kind(*frame) == "kernel" for frame in frames)
    return "kernel's entry, interrupts" if kernel else "user space"


def draw(data, file, title, roles):
    """Writes the graph; the share of each system call and of user space, by role of the process."""
    tree, calls = {}, collections.defaultdict(collections.Counter)
    samples = 0
    for pid, frames in stacks(data):
        samples += 1
        role = roles.get(pid, "?")
        calls[role][asked_for(frames)] += 1
        node = tree
        for frame in [(f"{role}'s sidecar", "other"), *shown(frames)]:
            entry = node.setdefault(frame, [0, {}])
            entry[0] += 1
            node = entry[1]
    boxes = []

    def place(node, left, depth):
        for (name, of), (count, below) in sorted(node.items()):
            width = count / samples * (WIDTH - 2 * MARGIN)
            if width >= NARROWEST:
                boxes.append((left, depth, width, name, of, count))
                place(below, left, depth + 1)
            left += width

    place(tree, MARGIN, 0)
    file.write_text(svg(boxes, title, samples))
    return {role: {c: n / samples for c, n in of.items()} for role, of in calls.items()}


def svg(boxes, title, samples):
    deepest = max((depth for _, depth, *_ in boxes), default=0)
    height = TOP + (deepest + 1) * HEIGHT + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="ui-monospace, monospace" font-size="10.5">'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
        f'<text x="{MARGIN}" y="20" font-size="14" font-weight="bold">{html.escape(title)}</text>'
        f'<text x="{MARGIN}" y="38">{samples:,} samples of CPU time; '
        "a frame stands on the one that called it</text>"
    ]
    x = MARGIN
    for name, colour in KINDS:
        parts.append(f'<rect x="{x}" y="46" width="11" height="11" fill="{colour}"/>')
        parts.append(f'<text x="{x + 15}" y="55">{name}</text>')
        x += 40 + len(name) * LETTER
    for left, depth, width, name, of, count in boxes:
        top = height - MARGIN - (depth + 1) * HEIGHT
        share = f"{count / samples:.1%}"
        parts.append(
            f'<g><title>{html.escape(name)} {share}</title><rect x="{left:.1f}" y="{top}" '
            f'width="{max(width - 0.4, 0.3):.1f}" height="{HEIGHT - 1}" fill="{COLOURS[of]}"/>'
        )
        letters = int((width - 4) / LETTER)
        if letters >= 3:
            text = label(name, share, letters)
            parts.append(f'<text x="{left + 2:.1f}" y="{top + 11}">{html.escape(text)}</text>')
        parts.append("</g>")
    parts.append("</svg>\n")
    return "\n".join(parts)


def label(name, share, letters):
    """The end of a name says most."""
    for text in (f"{name} {share}", name, "::".join(name.split("::")[-2:]), name.split("::")[-1]):
        if len(text) <= letters:
            return text
    return name.split("::")[-1][: letters - 1] + "…"
