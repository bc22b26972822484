// What can be checked of accessibility on a page by itself; returns a list of sentences, empty when all is well.
() => {
  const faults = [];
  const seen = (el) => { const box = el.getBoundingClientRect(); const style = getComputedStyle(el); return box.width > 1 && box.height > 1 && style.visibility !== "hidden" && style.clipPath === "none"; };
  const say = (el, text) => faults.push(`${el.tagName.toLowerCase()}${el.id ? "#" + el.id : ""}.${[...el.classList].join(".")}: ${text}`);
  const named = (el) => (el.getAttribute("aria-label") || el.textContent || "").trim() !== "" || el.labels?.length > 0;

  // Contrast of text against what is behind it (WCAG 2.1, 1.4.3).
  const parse = (text) => { const n = text.match(/[\d.]+/g).map(Number); return { r: n[0], g: n[1], b: n[2], a: n[3] ?? 1 }; };
  const light = ({ r, g, b }) => [r, g, b].map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (el) => { for (let at = el; at; at = at.parentElement) { const c = parse(getComputedStyle(at).backgroundColor); if (c.a === 1) return c; } return { r: 255, g: 255, b: 255 }; };
  for (const el of document.querySelectorAll("body *")) {
    const own = [...el.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !seen(el) || el.closest("svg") || el.closest("noscript")) continue;
    const style = getComputedStyle(el);
    const pair = [light(parse(style.color)), light(ground(el))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    const size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    if (ratio < needed) say(el, `contrast ${ratio.toFixed(2)} of "${el.textContent.trim().slice(0, 30)}"`);
  }

  // Text in drawings, against the shape it stands on.
  for (const el of document.querySelectorAll("svg text")) {
    const shape = el.parentElement.querySelector("rect");
    if (!shape) continue;
    const pair = [light(parse(getComputedStyle(el).fill)), light(parse(getComputedStyle(shape).fill))].sort((a, b) => b - a);
    if ((pair[0] + 0.05) / (pair[1] + 0.05) < 4.5) say(el, `contrast in a drawing of "${el.textContent}"`);
    const inner = el.getBBox(), outer = shape.getBBox();
    if (inner.x < outer.x || inner.x + inner.width > outer.x + outer.width) say(el, `text "${el.textContent}" stands over its box`);
  }

  for (const el of document.querySelectorAll("input:not([type=hidden]), select, textarea")) if (!el.labels?.length && !el.getAttribute("aria-label")) say(el, "no label");
  for (const el of document.querySelectorAll("a, button, summary")) if (!named(el)) say(el, "no name");
  for (const el of document.querySelectorAll("a:not([href])")) say(el, "a link without an address");
  for (const el of document.querySelectorAll("[role=img]")) if (!el.getAttribute("aria-label")) say(el, "a picture without words");
  for (const el of document.querySelectorAll("th")) if (!el.getAttribute("scope") && !el.closest(".u-legend")) say(el, "a heading cell without scope");
  for (const el of document.querySelectorAll("dl > *, dl > div > *")) if (!["DIV", "DT", "DD"].includes(el.tagName)) say(el, "no place in a list of facts");
  for (const el of document.querySelectorAll("ul > *, ol > *")) if (el.tagName !== "LI") say(el, "no place in a list");
  for (const el of document.querySelectorAll("[tabindex]")) if (el.tabIndex > 0) say(el, "an order of focus of its own");
  const ids = [...document.querySelectorAll("[id]")].map((el) => el.id);
  for (const id of new Set(ids.filter((id, i) => ids.indexOf(id) !== i))) faults.push(`id ${id} twice`);
  if (!document.documentElement.lang) faults.push("no language");
  if (!document.title) faults.push("no title");
  if (document.querySelectorAll("h1").length !== 1) faults.push("not one h1");
  for (const mark of ["header", "nav", "main"]) if (!document.querySelector(mark)) faults.push(`no ${mark}`);
  let level = 0;
  for (const el of document.querySelectorAll("h1, h2, h3, h4")) { const now = Number(el.tagName[1]); if (now > level + 1) say(el, "a heading that skips a level"); level = now; }
  for (const el of document.querySelectorAll("a, button, input, select, summary")) {
    const box = el.getBoundingClientRect();
    if (seen(el) && getComputedStyle(el).display !== "inline" && box.height < 24) say(el, `too small to hit: ${box.height}`);
  }
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide > 0) faults.push(`the page is ${wide} px wider than its window`);
  return faults;
}
