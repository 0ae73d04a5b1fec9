// The link to the other language keeps the heading that the reader is at.
(() => {
    const link = document.getElementById("language-switch");
    if (!link) return;
    const page = link.getAttribute("href");
    const follow = () => link.setAttribute("href", page + location.hash);
    addEventListener("hashchange", follow);
    follow();
})();
