// Return what is wrong with the layout of the current page: it is wider than the window, text is smaller than 12 px, cut
// off, or drawn over other text.
() => {
  const SMALLEST = 12, TOLERANCE = 2; // pixels
  const faults = new Set(), texts = [];
  const quote = (text) => JSON.stringify(text.trim().replace(/\s+/g, " ").slice(0, 40));
  const excess = document.documentElement.scrollWidth - innerWidth;
  if (excess > 0) faults.add(`${excess} px wider than the window`);

  // Return the visible part of a box in `element`, and whether an ancestor that does not scroll cuts it.
  function clip(box, element) {
    let { top, bottom } = box, left = Math.max(box.left, 0), right = Math.min(box.right, innerWidth);
    let isCut = false;
    for (let at = element; at !== document.documentElement; at = at.parentElement) {
      const { overflowX, clipPath, clip: oldClip } = getComputedStyle(at);
      const isClipping = overflowX !== "visible" && (at instanceof HTMLElement || at instanceof SVGSVGElement);
      if (!isClipping && clipPath === "none" && oldClip === "auto") continue;
      const edge = at.getBoundingClientRect();
      if (edge.width <= 1 || edge.height <= 1) return null; // only for screen readers
      if (box.right > edge.right + 1 && overflowX !== "auto" && overflowX !== "scroll") {
        isCut ||= getComputedStyle(at).textOverflow !== "ellipsis";
      }
      left = Math.max(left, edge.left);
      right = Math.min(right, edge.right);
      top = Math.max(top, edge.top);
      bottom = Math.min(bottom, edge.bottom);
    }
    return right - left > 1 && bottom - top > 1 ? { left, right, top, bottom, isCut } : null;
  }

  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.data.trim() || element.closest("script, style, option, textarea, title, desc, noscript")) continue;
    if (!element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const size = parseFloat(getComputedStyle(element).fontSize);
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      const visible = clip(box, element);
      if (!visible) continue;
      if (size < SMALLEST) faults.add(`${size} px: ${quote(node.data)}`);
      if (visible.isCut) faults.add(`cut off: ${quote(node.data)}`);
      const leading = Math.max(0, (box.height - size) / 2); // letters are lower than their line
      texts.push({ ...visible, top: visible.top + leading, bottom: visible.bottom - leading, node });
    }
  }

  texts.sort((one, other) => one.top - other.top);
  texts.forEach((one, index) => {
    for (const other of texts.slice(index + 1)) {
      if (other.top >= one.bottom - TOLERANCE) break;
      if (one.node === other.node) continue;
      const width = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const height = Math.min(one.bottom, other.bottom) - other.top;
      if (width > TOLERANCE && height > TOLERANCE) {
        faults.add(`overlap: ${quote(one.node.data)} and ${quote(other.node.data)}`);
      }
    }
  });
  return [...faults];
}
