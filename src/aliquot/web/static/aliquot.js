// Says whether the page is live. Everything else is htmx's work, by attributes.
(() => {
  "use strict";
  const say = (text, lost) => {
    const state = document.getElementById("live-state");
    if (!state) return;
    if (state.textContent !== text) state.textContent = text;
    state.classList.toggle("lost", Boolean(lost));
  };
  const on = (name, then) => document.addEventListener(name, then);
  on("htmx:sse:after:connection", () => say("live", false));
  on("htmx:sse:after:message", () => say("live", false));
  on("htmx:sse:error", (event) => {
    // Signed out meanwhile: the page as it is now asks for a token.
    if (event.detail && event.detail.status === 401) location.reload();
    else say("connection lost, trying again", true);
  });
  on("htmx:sse:close", (event) => {
    if (event.detail && event.detail.reason === "ended") say("not live", true);
  });
  on("htmx:response:error", (event) => {
    const ctx = event.detail && event.detail.ctx;
    if (ctx && ctx.sourceElement && ctx.sourceElement.id === "live") say("not live", true);
  });
  // A form that htmx serves needs no empty words in its address.
  on("htmx:config:request", (event) => {
    const ctx = event.detail && event.detail.ctx;
    const form = ctx && ctx.sourceElement;
    if (!form || form.tagName !== "FORM" || !ctx.request.body || !ctx.request.body.delete) return;
    for (const [name, value] of [...ctx.request.body.entries()]) if (value === "") ctx.request.body.delete(name);
  });
})();
