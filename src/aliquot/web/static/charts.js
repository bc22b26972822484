// The last hour of one GPU: a line for each tenant and quantity, renewed as often as there are new points. Thin lines
// are what the tenant was promised, so that one sees whether it is kept.
(() => {
  "use strict";
  const section = document.getElementById("charts");
  if (!section || !window.uPlot) return;
  const scale = { usage_milli: 1000, memory_mib: 1024 };
  const shades = ["--t0", "--t1", "--t2", "--t3", "--t4", "--t5"];
  const dashes = [[], [8, 3], [2, 3], [8, 3, 2, 3], [14, 4], [4, 4]];
  const two = (n) => String(n).padStart(2, "0");
  const clock = (s, seconds) => { const d = new Date(s * 1000); return `${two(d.getHours())}:${two(d.getMinutes())}${seconds ? `:${two(d.getSeconds())}` : ""}`; };
  const zone = `time (${Intl.DateTimeFormat().resolvedOptions().timeZone || "local"})`;
  const plots = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // The tenants in the order of the table above, with the shade of their row and of their part of the bar, and what
  // they were promised; after them those that left, with the next shades in turn and no promise.
  function sorted(series) {
    const rows = new Map();
    for (const row of document.querySelectorAll("#tenants tbody tr")) {
      const head = row.querySelector("th");
      const { request, limit, memory } = row.dataset;
      const promised = { usage_milli: [request / 1000, limit / 1000], memory_mib: [memory / 1024] };
      rows.set(head.textContent.trim(), { place: rows.size, shade: Number(head.querySelector("i").className.slice(1)), promised });
    }
    return series
      .map((one, i) => ({ one, ...(rows.get(one.tenant) || { place: rows.size + i, shade: (rows.size + i) % shades.length, promised: {} }) }))
      .sort((a, b) => a.place - b.place);
  }

  // The line of a tenant as its legend shows it.
  function sample(shade, colour) {
    let at = 0;
    const parts = (dashes[shade].length ? dashes[shade] : [24]).map((length, i) => `${i % 2 ? "transparent" : colour} ${at}px ${(at += length)}px`);
    return `repeating-linear-gradient(90deg, ${parts.join(", ")})`;
  }

  // Request, and memory, as a thin line; the limit as a dotted one.
  function drawPromised(plot, tenants, metric) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    for (const { shade, promised } of tenants) {
      ctx.strokeStyle = colour(shades[shade]);
      (promised[metric] || []).forEach((value, i) => {
        const y = Math.round(plot.valToPos(value, "y", true)) + ctx.lineWidth / 2;
        ctx.setLineDash(i ? [devicePixelRatio, devicePixelRatio] : []);
        ctx.beginPath();
        ctx.moveTo(bbox.left, y);
        ctx.lineTo(bbox.left + bbox.width, y);
        ctx.stroke();
      });
    }
    ctx.restore();
  }

  function labelOf({ one, promised }, metric) {
    const [first, limit] = promised[metric] || [];
    if (first === undefined) return one.tenant;
    return `${one.tenant}, ${metric === "usage_milli" ? `request ${first.toFixed(2)}, limit ${limit.toFixed(2)}` : `of ${first.toFixed(1)}`}`;
  }

  // What the legend shows of a series: the value under the cursor, or without a cursor the last one.
  function shown(plot, series, value, text) {
    const known = value ?? (plot.cursor.idx == null ? plot.data[series].at(-1) : null);
    return known == null ? "–" : text(known);
  }

  function options(metric, tenants, width) {
    const most = Math.max(1, ...tenants.flatMap(({ promised }) => promised[metric] || []));
    const digits = metric === "usage_milli" ? 2 : metric === "memory_mib" ? 1 : 0;
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    return {
      width, height: 176, cursor: { points: { size: 5 } },
      scales: { x: { range: (_, low, high) => [Math.min(low, high - 300), high] }, y: { range: (_, low, high) => [0, Math.max(metric === "usage_milli" ? 0 : 1.05 * (high || 0), most * (metric === "usage_milli" ? 1 : 1.05))] } },
      axes: [{ ...axis, space: 72, values: (_, ticks) => ticks.map((s) => clock(s, s % 60 !== 0)) }, { ...axis, size: 44 }],
      legend: { markers: { width: 0, fill: (_, i) => sample(tenants[i - 1].shade, colour(shades[tenants[i - 1].shade])) } },
      hooks: { drawAxes: [(plot) => drawPromised(plot, tenants, metric)] },
      series: [{ label: zone, value: (plot, s) => shown(plot, 0, s, (at) => clock(at, true)) }].concat(tenants.map((tenant) => ({
        label: labelOf(tenant, metric), stroke: colour(shades[tenant.shade]), width: 2, dash: dashes[tenant.shade], points: { show: false },
        value: (plot, v, i) => shown(plot, i, v, (found) => found.toFixed(digits)),
      }))),
    };
  }

  function draw(history) {
    const tenants = sorted(history.series);
    for (const figure of section.querySelectorAll("figure")) {
      const metric = figure.dataset.metric;
      const by = scale[metric] || 1;
      const data = [history.at_s].concat(tenants.map(({ one }) => one[metric].map((v) => (v == null ? null : v / by))));
      const key = JSON.stringify(tenants.map(({ one, shade, promised }) => [one.tenant, shade, promised]));
      const known = plots.get(metric);
      if (known && known.key === key) { known.plot.setData(data); continue; }
      if (known) known.plot.destroy();
      const place = figure.querySelector(".plot");
      place.replaceChildren();
      plots.set(metric, { key, plot: new uPlot(options(metric, tenants, place.clientWidth), data, place) });
    }
  }

  async function renew() {
    let pause = 5000;
    try {
      const answer = await fetch(section.dataset.history, { headers: { accept: "application/json" } });
      if (answer.ok) {
        const history = await answer.json();
        pause = history.step_s * 1000;
        if (history.series.length) draw(history);
      }
    } catch { /* the page says itself that the connection is lost */ }
    setTimeout(renew, pause);
  }

  const forget = () => { for (const { plot } of plots.values()) plot.destroy(); plots.clear(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", forget);
  const fit = () => {
    for (const { plot } of plots.values()) {
      const width = plot.root.parentElement.clientWidth;
      if (width) plot.setSize({ width, height: 176 });
    }
  };
  addEventListener("resize", fit);
  for (const folded of section.querySelectorAll("details")) folded.addEventListener("toggle", fit);
  renew();
})();
