/** Moves and zooms the graph by mouse, touch pad, fingers and keys. */
import { type Signal, signal } from "@preact/signals";
import type { RefObject } from "preact";
import { useEffect } from "preact/hooks";
import { fit, type Rect, SMALLEST, type View, zoomed } from "./geometry.ts";
import type { Point } from "./layout.ts";

export const view = signal<View>({ x: 0, y: 0, k: 1 });
/** Whether a person has moved the view: from then on nothing but they does. */
export const moved: Signal<boolean> = signal(false);

/** Room for the buttons at the right and the legend below. */
const PADDING = { left: 26, top: 26, right: 66, bottom: 76 };

/** Size of what can be seen of the graph: the panel, if it does not cover everything, hides a part. */
function visible(element: Element): { width: number; height: number } {
  const { width, height } = element.getBoundingClientRect();
  const panel = element.parentElement?.querySelector(".panel")?.getBoundingClientRect().width ?? 0;
  return { width: panel < width ? width - panel : width, height };
}

/** On a phone names stay readable, and the rest is a swipe away. */
const READABLE = 0.5;

export function fitTo(content: Rect, element: Element, whole = false): void {
  const { width, height } = visible(element);
  // An observer also tells of an element that has just been removed.
  if (width === 0 || height === 0) return;
  const inner = fit(
    content,
    width - PADDING.left - PADDING.right,
    height - PADDING.top - PADDING.bottom,
    width < 600 && !whole ? READABLE : SMALLEST,
  );
  view.value = { k: inner.k, x: inner.x + PADDING.left, y: inner.y + PADDING.top };
}

export function zoomBy(factor: number, element: Element, at?: Point): void {
  const { width, height } = element.getBoundingClientRect();
  moved.value = true;
  view.value = zoomed(view.value, factor, at ?? { x: width / 2, y: height / 2 });
}

export function panBy(dx: number, dy: number): void {
  moved.value = true;
  view.value = { ...view.value, x: view.value.x + dx, y: view.value.y + dy };
}

/** Moves the view as little as needed to show a part of the graph; where it is too large, zooms out. */
export function reveal(part: Rect, element: Element): void {
  const { width, height } = visible(element);
  const { x, y, k } = view.value;
  const margin = 24;
  if (part.width * k > width - 2 * margin || part.height * k > height - 2 * margin) {
    fitTo(part, element);
    return;
  }
  const beyond = (from: number, size: number, all: number) =>
    from < margin ? margin - from : from + size > all - margin ? all - margin - from - size : 0;
  const dx = beyond(part.x * k + x, part.width * k, width);
  const dy = beyond(part.y * k + y, part.height * k, height);
  if (dx || dy) view.value = { k, x: x + dx, y: y + dy };
}

/** Listens to wheel and pointers on the element. Clicks on nodes and edges stay clicks. */
export function useViewport(svg: RefObject<SVGSVGElement | null>): void {
  useEffect(() => {
    const element = svg.current;
    if (!element) return;
    const pointers = new Map<number, Point>();
    const local = (event: MouseEvent): Point => {
      const box = element.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    const onWheel = (event: WheelEvent) => {
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 16 : 1;
      if (event.ctrlKey || Math.abs(event.deltaX) < Math.abs(event.deltaY)) {
        zoomBy(Math.exp((-event.deltaY * lines) / (event.ctrlKey ? 120 : 500)), element, local(event));
      } else panBy(-event.deltaX * lines, 0);
    };
    const onDown = (event: PointerEvent) => {
      if (event.button !== 0 || (event.target as Element).closest("[data-pick]")) return;
      pointers.set(event.pointerId, local(event));
      element.setPointerCapture(event.pointerId);
      element.classList.add("panning");
    };
    const onMove = (event: PointerEvent) => {
      const before = pointers.get(event.pointerId);
      if (!before) return;
      const now = local(event);
      const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
      if (other) {
        const apart = (p: Point) => Math.max(1, Math.hypot(p.x - other.x, p.y - other.y));
        zoomBy(apart(now) / apart(before), element, other);
      } else panBy(now.x - before.x, now.y - before.y);
      pointers.set(event.pointerId, now);
    };
    const onUp = (event: PointerEvent) => {
      pointers.delete(event.pointerId);
      if (pointers.size === 0) element.classList.remove("panning");
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    element.addEventListener("pointerdown", onDown);
    element.addEventListener("pointermove", onMove);
    element.addEventListener("pointerup", onUp);
    element.addEventListener("pointercancel", onUp);
    return () => {
      element.removeEventListener("wheel", onWheel);
      element.removeEventListener("pointerdown", onDown);
      element.removeEventListener("pointermove", onMove);
      element.removeEventListener("pointerup", onUp);
      element.removeEventListener("pointercancel", onUp);
    };
  }, []);
}
