/** Runs in the page: the texts whose contrast with what is behind them is below 4.5 (3 for large ones). */
export function contrasts() {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const over = (top, below) => {
    const a = top[3] / 255;
    return [0, 1, 2].map((i) => top[i] * a + below[i] * (1 - a)).concat(255);
  };
  const light = (c) => {
    const [r, g, b] = c
      .slice(0, 3)
      .map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      layers.push(rgba(getComputedStyle(at).backgroundColor));
      // Text of the graph stands on a rectangle that is drawn before it.
      if (at.tagName === "text") {
        const rects = [...at.parentElement.children].filter(
          (c) => c.tagName === "rect" && c.getAttribute("class") !== "node-tile",
        );
        if (rects.length) layers.push(rgba(getComputedStyle(rects.at(-1)).fill));
      }
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 255]);
  };
  const faults = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const box = element.getBoundingClientRect();
    const hidden = element.closest(".hidden, .dimmed, noscript, option, .far") || box.width < 2 || box.height < 2;
    if (!walker.currentNode.textContent.trim() || hidden) continue;
    const style = getComputedStyle(element);
    if (style.visibility === "hidden") continue;
    const ground = behind(element);
    const colour = over(rgba(element.namespaceURI.includes("svg") ? style.fill : style.color), ground);
    const [high, low] = [light(colour), light(ground)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const large = Number.parseFloat(style.fontSize) >= 24;
    if (ratio < (large ? 3 : 4.5)) {
      const text = walker.currentNode.textContent.trim().slice(0, 20);
      faults.add(`${ratio.toFixed(2)} ${element.tagName}.${element.getAttribute("class") ?? ""} “${text}”`);
    }
  }
  return [...faults];
}
