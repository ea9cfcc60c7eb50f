// Filters the operations as their reader types, and copies commands. The page works without it.
const input = document.getElementById("q");
const operations = [...document.querySelectorAll(".op")];

function filter() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const each of operations) each.hidden = !words.every((word) => each.dataset.text.includes(word));
  for (const tag of document.querySelectorAll(".tag")) tag.hidden = tag.querySelector(".op:not([hidden])") === null;
  document.getElementById("none").hidden = operations.some((each) => !each.hidden);
}

/** Open the operation that the address names. */
function open() {
  const named = document.getElementById(location.hash.slice(1));
  if (named?.matches("details")) named.open = true;
}

input.addEventListener("input", filter);
input.form.addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", open);
for (const each of operations) {
  each.addEventListener("toggle", () => each.open && history.replaceState(null, "", `#${each.id}`));
}
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });
}
open();
