// Says whether the page is live, and since when there is no news; copies commands. Everything else is htmx's work, by
// attributes.
(() => {
  "use strict";
  // The server sends something every 15 s; silence for longer than two of these is a lost connection.
  const SILENCE_MS = 40000;
  let heard = Date.now();
  document.documentElement.classList.add("js");
  const two = (n) => String(n).padStart(2, "0");
  const clock = (ms) => { const d = new Date(ms); return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`; };
  const say = (text, lost) => {
    const state = document.getElementById("live-state");
    if (!state) return;
    if (state.textContent !== text) state.textContent = text;
    state.classList.toggle("lost", Boolean(lost));
  };
  const stale = () => {
    const banner = document.getElementById("lost");
    if (!banner || !banner.hidden || !document.getElementById("live")) return;
    banner.textContent = `No news since ${clock(heard)} by your clock. What is shown is as it was then; trying again.`;
    banner.hidden = false;
    document.body.classList.add("stale");
  };
  const fresh = () => {
    heard = Date.now();
    say("live", false);
    const banner = document.getElementById("lost");
    if (banner) banner.hidden = true;
    document.body.classList.remove("stale");
  };
  const on = (name, then) => document.addEventListener(name, then);
  on("htmx:sse:after:message", fresh);
  on("htmx:sse:error", (event) => {
    // Signed out meanwhile: the page as it is now asks for a token.
    if (event.detail && event.detail.status === 401) { location.reload(); return; }
    say("connection lost, trying again", true);
    stale();
  });
  on("htmx:sse:close", (event) => {
    if (event.detail && event.detail.reason === "ended") { say("not live", true); stale(); }
  });
  on("htmx:response:error", (event) => {
    const ctx = event.detail && event.detail.ctx;
    if (ctx && ctx.sourceElement && ctx.sourceElement.id === "live") say("not live", true);
  });
  setInterval(() => { if (!document.hidden && Date.now() - heard > SILENCE_MS) stale(); }, 1000);

  // The command before a button, to the clipboard; where the browser gives none, it is selected.
  on("click", async (event) => {
    const button = event.target.closest && event.target.closest("button.copy");
    const code = button && button.previousElementSibling;
    if (!code) return;
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    } catch { getSelection().selectAllChildren(code); }
  });

  // A form that htmx serves needs no empty words in its address.
  on("htmx:config:request", (event) => {
    const ctx = event.detail && event.detail.ctx;
    const form = ctx && ctx.sourceElement;
    if (!form || form.tagName !== "FORM" || !ctx.request.body || !ctx.request.body.delete) return;
    for (const [name, value] of [...ctx.request.body.entries()]) if (value === "") ctx.request.body.delete(name);
  });
})();
