// The last hour of one GPU: a line for each tenant and quantity, renewed as often as there are new points.
(() => {
  "use strict";
  const section = document.getElementById("charts");
  if (!section || !window.uPlot) return;
  const scale = { usage_milli: 1000, memory_mib: 1024 };
  const families = { usage_milli: ["--c0", "--c1", "--c2", "--c3"], memory_mib: ["--m0", "--m1", "--m2", "--m3"] };
  const dashes = [[], [8, 3], [2, 3], [8, 3, 2, 3]];
  const two = (n) => String(n).padStart(2, "0");
  const clock = (s, seconds) => { const d = new Date(s * 1000); return `${two(d.getHours())}:${two(d.getMinutes())}${seconds ? `:${two(d.getSeconds())}` : ""}`; };
  const plots = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // A tenant has the shade that its row and its part of the bar have; one that left has the next in turn.
  function shadesOf(names) {
    const rows = new Map();
    for (const row of document.querySelectorAll("#tenants tbody th")) {
      rows.set(row.textContent.trim(), Number((row.querySelector("i") || {}).className.slice(1)) || 0);
    }
    return names.map((name, i) => (rows.has(name) ? rows.get(name) : (rows.size + i) % 4));
  }

  function options(metric, names, shade, width) {
    const shades = families[metric] || families.usage_milli;
    const digits = metric === "usage_milli" ? 2 : metric === "memory_mib" ? 1 : 0;
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    return {
      width, height: 176, cursor: { points: { size: 5 } },
      scales: { x: { range: (_, low, high) => [Math.min(low, high - 300), high] }, y: { range: (_, low, high) => [0, metric === "usage_milli" ? 1 : Math.max(high || 0, 1)] } },
      axes: [{ ...axis, space: 72, values: (_, ticks) => ticks.map((s) => clock(s, s % 60 !== 0)) }, { ...axis, size: 44 }],
      series: [{ label: "at", value: (_, s) => (s == null ? "–" : clock(s, true)) }].concat(names.map((name, i) => ({
        label: name, stroke: colour(shades[shade[i]]), width: 2, dash: dashes[shade[i]], points: { show: false },
        value: (_, v) => (v == null ? "–" : v.toFixed(digits)),
      }))),
    };
  }

  function draw(history) {
    const names = history.series.map((series) => series.tenant);
    const shade = shadesOf(names);
    for (const figure of section.querySelectorAll("figure")) {
      const metric = figure.dataset.metric;
      const by = scale[metric] || 1;
      const data = [history.at_s].concat(history.series.map((series) => series[metric].map((v) => (v == null ? null : v / by))));
      const key = names.concat(shade).join("\n");
      const known = plots.get(metric);
      if (known && known.key === key) { known.plot.setData(data); continue; }
      if (known) known.plot.destroy();
      const place = figure.querySelector(".plot");
      place.replaceChildren();
      plots.set(metric, { key, plot: new uPlot(options(metric, names, shade, place.clientWidth), data, place) });
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
  addEventListener("resize", () => {
    for (const { plot } of plots.values()) plot.setSize({ width: plot.root.parentElement.clientWidth, height: 176 });
  });
  renew();
})();
