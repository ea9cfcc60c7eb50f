// Keeps a page as the service has it now, and its moments as far away as they are. Every page and
// every act works without this.

const REFRESH_MS = { watch: 1000, list: 3000 };
const IDLE_MS = 60_000;
const USED_MS = 120_000;

const UNITS = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];
const main = document.getElementById("main");
const line = document.getElementById("live");
let etag = null;
let timer = 0;
let usedAt = Date.now();
let newRows = 0;
let refreshing = false;

/** Write how far away each moment is that is less than a week from now, as `zone.ago` does. */
function ago() {
  for (const time of document.querySelectorAll("time.ago")) {
    const passed = Math.trunc((Date.now() - new Date(time.dateTime)) / 1000);
    const size = Math.abs(passed);
    if (size >= 604_800) continue;
    const [length, unit] = UNITS.find(([length]) => size >= length) ?? [1, "s"];
    const near = `${Math.floor(size / length)} ${unit}`;
    const text = passed < 0 ? `in ${near}` : `${near} ago`;
    if (time.firstChild.data !== text) time.firstChild.data = text;
  }
}

/** Offer the browser's time zone where another is chosen; before one was, choose it. */
function offerZone() {
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const unchosen = document.querySelector("[data-zone-cookie]");
  if (unchosen !== null) {
    const secure = location.protocol === "https:" ? "; secure" : "";
    document.cookie = `${unchosen.dataset.zoneCookie}=${own}; path=/; max-age=31536000; samesite=lax${secure}`;
  }
  for (const button of document.querySelectorAll("button[data-zone]")) {
    button.value = button.textContent = own;
    button.hidden = own === button.dataset.zone || own === "UTC";
  }
}

/** Return the parts of a document that may be replaced, by name. */
function cells(where) {
  const found = new Map();
  for (const cell of where.querySelectorAll("[data-cell]")) found.set(cell.dataset.cell, cell);
  for (const row of where.querySelectorAll("[data-row]")) {
    for (const [place, cell] of [...row.cells].entries()) found.set(`${row.dataset.row}/${place}`, cell);
  }
  return found;
}

/** Return an element's HTML without what differs each time. */
function html(element) {
  return element.className + element.innerHTML.replace(/name="_key" value="\w+"/g, "");
}

/** Say whether the reader is at work in an element: typing, choosing, reading or marking. */
function inUse(element) {
  const marked = getSelection();
  return (
    element.contains(document.activeElement) ||
    element.querySelector("input:not([type=hidden]), select, textarea, details[open]") !== null ||
    (marked.rangeCount > 0 && !marked.isCollapsed && marked.getRangeAt(0).intersectsNode(element))
  );
}

/** Take over what is new of a document. */
function takeOver(next) {
  const fresh = cells(next);
  for (const [name, now] of cells(document)) {
    const then = fresh.get(name);
    if (then === undefined || html(now) === html(then)) continue;
    if (inUse(now)) {
      etag = null; // it is taken over later
    } else {
      now.className = then.className;
      now.replaceChildren(...then.childNodes);
    }
  }
  main.dataset.live = next.getElementById("main").dataset.live ?? "";
  countNew(next);
  ago();
}

/** Say how many rows have come since: they wait, so that nothing moves under the reader's hand. */
function countNew(next) {
  const known = new Set([...document.querySelectorAll("[data-row]")].map((row) => row.dataset.row));
  const rows = [...next.querySelectorAll("[data-rows] [data-row]")];
  const count = rows.filter((row) => !known.has(row.dataset.row)).length;
  if (count === newRows || count === 0) return;
  newRows = count;
  const button = make("button", { className: "new", textContent: `${count === rows.length ? `${count} or more` : count} new` });
  button.addEventListener("click", () => location.reload());
  line.replaceChildren(button);
}

/** Fetch the page as it is now. */
async function refresh() {
  clearTimeout(timer);
  if (refreshing) return;
  refreshing = true;
  try {
    const headers = etag === null ? {} : { "If-None-Match": etag };
    const answer = await fetch(location.href, { headers, cache: "no-store" });
    if (answer.status === 401) {
      line.replaceChildren(make("a", { href: location.href, textContent: "You are signed out. Sign in again" }));
      return;  // and never refresh again
    }
    if (answer.status === 200) {
      etag = answer.headers.get("ETag");
      takeOver(await read(answer));
    }
    main.classList.toggle("stale", !answer.ok && answer.status !== 304);
  } catch {
    main.classList.add("stale");
  }
  refreshing = false;
  wait();
}

function wait() {
  if (!(main.dataset.live in REFRESH_MS)) return;
  const active = !document.hidden && Date.now() - usedAt < USED_MS;
  clearTimeout(timer);
  timer = setTimeout(refresh, active ? REFRESH_MS[main.dataset.live] : IDLE_MS);
}

/** The reader is active: refresh soon if that was long ago. */
function used() {
  const away = Date.now() - usedAt >= USED_MS;
  usedAt = Date.now();
  if (away) wait();
}

/** Put a button beside each id, payload and command of a page, which copies it. */
function offerCopies() {
  for (const source of document.querySelectorAll("main pre:not(.secret), main .soft > code, main .facts code, .foot code")) {
    if ("copied" in source.dataset) continue;
    source.dataset.copied = "";
    const name = `Copy ${source.textContent.trim().slice(0, 40)}`;
    const button = make("button", { type: "button", className: "copy", textContent: "Copy", ariaLabel: name });
    button.addEventListener("click", () => write(button, source));
    if (source.closest("a") !== null) source.closest("a").after(button);
    else if (source.tagName === "PRE") source.before(button);
    else source.after(button);
  }
}

/** Copy an element's text; where the clipboard is out of reach, select it for the keyboard. */
async function write(button, source) {
  getSelection().selectAllChildren(source);
  if (!navigator.clipboard) return;
  await navigator.clipboard.writeText(source.textContent);
  button.textContent = "Copied";
}

/** Return the document of an answer. */
async function read(answer) {
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

/** Return a function that asks once it was not called for so long, and then does what `ask` returns.
    An answer that comes after a later call is dropped, and so is an error: all works without. */
function paused(ms, ask) {
  let due = 0;
  return () => {
    clearTimeout(due);
    const mine = due = setTimeout(() => ask().then((act) => mine === due && act?.(), () => {}), ms);
  };
}

/** Offer what a part of a name may mean, under the field that takes its id. */
function pickAsTyped(field) {
  field.addEventListener("input", paused(200, async () => {
    const typed = field.value.trim();
    if (typed.length < 2) return null;
    const answer = await fetch(`/console/search?${new URLSearchParams({ q: typed, kind: field.dataset.pick })}`);
    if (!answer.ok) return null;
    const options = [...(await read(answer)).querySelectorAll("main [data-row]")].map((row) =>
      make("option", { value: row.dataset.row, label: row.querySelector("a").textContent }));
    return () => field.list.replaceChildren(...options);
  }));
}

/** Have the service check what is typed into a form, soon after the reader pauses. */
function checkAsTyped(form) {
  form.addEventListener("input", paused(400, async () => {
    const body = new URLSearchParams(new FormData(form));
    const page = await read(await fetch(form.dataset.check, { method: "POST", body }));
    const said = page.querySelector('[data-cell="checked"]');
    return said && (() => form.querySelector('[data-cell="checked"]').replaceChildren(...said.childNodes));
  }));
}

const KEYS = {
  "/": "search", "j, k": "next and previous row", "Enter": "open the row", "Ctrl+K": "pages, acts and search",
  "?": "this help",
};
const places = [...document.querySelectorAll("#places option")];
let going = 0; // until when a letter after `g` leads somewhere

function keysAreOn() {
  return localStorage.getItem("keys") !== "off";
}

/** Make an element of text and children. */
function make(tag, attributes, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

/** Show a modal dialog that is gone once it is closed; the focus returns to where it was. */
function show(name, ...children) {
  const dialog = make("dialog", { className: name, ariaLabel: name }, ...children);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** A box that switches the single keys on and off, for this browser (WCAG 2.1.4). */
function wireSwitch(box) {
  box.checked = keysAreOn();
  box.addEventListener("change", () => localStorage.setItem("keys", box.checked ? "on" : "off"));
  return box;
}

function help() {
  const lines = Object.entries(KEYS);
  for (const place of places) {
    if (place.dataset.letter) lines.push([`g ${place.dataset.letter}`, place.label]);
  }
  const rows = lines.flatMap(([key, text]) => [make("dt", {}, make("kbd", { textContent: key })), make("dd", { textContent: text })]);
  const box = make("label", { className: "inline" }, wireSwitch(make("input", { type: "checkbox" })), " Single keys are on; Ctrl+K always works");
  show("Keyboard", make("h2", { textContent: "Keyboard" }), make("dl", {}, ...rows), box, make("form", { method: "dialog" }, make("button", { className: "plain", textContent: "Close" })));
}

/** What the palette offers for a text: pages, acts of this page, then what the search finds. */
function offers(text) {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (label) => wanted.every((word) => label.toLowerCase().includes(word));
  const found = places.filter((place) => fits(place.label)).map((place) => ["Page", place.label, () => location.assign(place.value)]);
  for (const act of main.querySelectorAll("form.act button, a.button, summary")) {
    const label = act.textContent.trim();
    if (!label || !fits(label) || act.closest("[hidden]") !== null) continue;
    found.push(["On this page", label, () => { act.focus(); act.click(); }]);
  }
  if (text.trim()) {
    const query = new URLSearchParams({ q: text.trim() });
    found.push(["Search", `“${text.trim()}”`, () => location.assign(`/console/search?${query}`)]);
  }
  return found.slice(0, 12);
}

/** Return what the service's search finds, as the palette offers it. */
async function search(text) {
  const answer = await fetch(`/console/search?${new URLSearchParams({ q: text })}`);
  if (!answer.ok) return [];
  const page = await read(answer);
  if (answer.redirected) return [["Found", page.querySelector("h1").textContent.trim(), () => location.assign(answer.url)]];
  return [...page.querySelectorAll("main tbody tr")].slice(0, 8).map((row) => {
    const link = row.querySelector("a");
    return [row.cells[0].textContent.trim(), link.textContent.trim(), () => location.assign(link.getAttribute("href"))];
  });
}

function palette() {
  const input = make("input", { type: "text", placeholder: "A page, an act, an id or words", spellcheck: false, autocomplete: "off", ariaLabel: "A page, an act, an id or words" });
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-expanded", "true");
  input.setAttribute("aria-controls", "offers");
  const list = make("ul", { id: "offers", role: "listbox", ariaLabel: "Offers" });
  const dialog = show("Palette", input, list);
  let now = [], at = 0;
  const mark = () => {
    [...list.children].forEach((item, place) => item.setAttribute("aria-selected", place === at));
    if (list.children[at]) {
      input.setAttribute("aria-activedescendant", list.children[at].id);
      list.children[at].scrollIntoView({ block: "nearest" });
    }
  };
  const fill = (found) => {
    now = found;
    at = 0;
    list.replaceChildren(...found.map(([kind, label, act], place) => {
      const item = make("li", { id: `offer-${place}`, role: "option" }, make("span", { className: "soft", textContent: kind }), " ", make("bdi", { textContent: label }));
      item.addEventListener("click", () => { dialog.close(); act(); });
      return item;
    }));
    mark();
  };
  fill(offers(""));
  const searched = paused(250, async () => {
    const text = input.value;
    const found = text.trim().length < 2 ? [] : await search(text);
    return () => dialog.isConnected && input.value === text && fill([...offers(text), ...found]);
  });
  input.addEventListener("input", () => {
    fill(offers(input.value));
    searched();
  });
  input.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && now.length) {
      at = (at + step + now.length) % now.length;
      mark();
      event.preventDefault();
    } else if (event.key === "Enter" && now[at]) {
      dialog.close();
      now[at][2]();
      event.preventDefault();
    }
  });
}

/** Move the focus to the first link of the next row, or of the one before. */
function step(by) {
  const rows = [...main.querySelectorAll("tbody tr")].filter((row) => row.querySelector("a") !== null && row.offsetParent !== null);
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[at === -1 ? (by > 0 ? 0 : rows.length - 1) : at + by];
  if (next) next.querySelector("a").focus({ focusVisible: true });
}

/** Single keys, unless the reader types, composes, holds a modifier, or has switched them off. */
function key(event) {
  if (event.defaultPrevented || event.isComposing || event.altKey || document.querySelector("dialog[open]")) return;
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && event.key.toLowerCase() === "k" && places.length) {
    event.preventDefault();
    return palette();
  }
  const typing = event.target.closest?.("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]");
  if (event.ctrlKey || event.metaKey || typing || !keysAreOn()) return;
  const place = Date.now() < going && places.find((each) => each.dataset.letter === event.key);
  going = event.key === "g" ? Date.now() + 1500 : 0;
  if (place) location.assign(place.value);
  else if (event.key === "/") document.getElementById("find")?.focus();
  else if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "?") help();
  else return;
  event.preventDefault();
}

addEventListener("keydown", key);
for (const line of document.querySelectorAll("[data-switch]")) {
  line.hidden = false;
  wireSwitch(line.querySelector("input"));
}
for (const button of document.querySelectorAll("button[data-keys]")) {
  button.hidden = false;
  button.addEventListener("click", help);
}
offerZone();
offerCopies();
setInterval(ago, 10_000);
for (const form of document.querySelectorAll("form[data-check]")) checkAsTyped(form);
for (const field of document.querySelectorAll("input[data-pick]")) pickAsTyped(field);
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", () => write(button, document.getElementById(button.dataset.copy)));
}
for (const all of document.querySelectorAll("input[data-all]")) {
  all.closest("label").hidden = false;
  all.addEventListener("change", () => {
    for (const box of document.querySelectorAll(`input[name="${all.dataset.all}"]`)) box.checked = all.checked;
  });
}
if (main.dataset.live in REFRESH_MS) {
  for (const event of ["pointermove", "keydown", "scroll", "focusin"]) {
    addEventListener(event, used, { passive: true, capture: true });
  }
  document.addEventListener("visibilitychange", () => !document.hidden && refresh());
  wait();
}
