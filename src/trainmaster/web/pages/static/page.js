// Times that pass, the sign that a page is not connected, and keys. Pages say the same without it, only not by themselves.
"use strict";
(() => {
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

  function lasting(seconds) {
    const parts = [];
    let left = Math.max(0, Math.round(seconds));
    for (const [unit, size] of units) {
      const count = Math.floor(left / size);
      left -= count * size;
      if (count || (unit === "s" && !parts.length)) parts.push(`${count} ${unit}`);
      if (parts.length === 2) break;
    }
    return parts.join(" ");
  }

  function tick() {
    const now = Date.now() / 1000;
    for (const element of document.querySelectorAll("time[data-lasting], time[data-ago]")) {
      const seconds = now - Date.parse(element.dateTime) / 1000;
      const text = lasting(seconds) + ("ago" in element.dataset ? " ago" : "");
      if (element.textContent !== text) element.textContent = text;
    }
  }

  const sign = document.getElementById("offline");
  const usual = sign?.textContent;

  function connected(is, why = "") {
    if (!sign) return;
    sign.textContent = why ? `${why}; what you see may be old.` : usual;
    sign.hidden = is;
  }

  tick();
  setInterval(tick, 1000);
  for (const name of ["htmx:sse:after:message", "htmx:sse:after:connection"]) document.addEventListener(name, (event) => {
    if (event.detail?.message?.event !== "trouble") connected(true); // that is a message too
    tick();
  });
  document.addEventListener("htmx:after:swap", tick);
  document.addEventListener("htmx:sse:error", () => connected(false));
  document.addEventListener("htmx:error", () => connected(false));
  document.addEventListener("trouble", (event) => connected(false, event.detail?.data));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    const search = document.querySelector("input[type=search]");
    if (event.key === "/" && search) {
      event.preventDefault();
      search.focus();
    }
  });
})();
