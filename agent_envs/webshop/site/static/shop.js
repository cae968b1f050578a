// Options are links and work without this file. It adds two things: a click on the radio input
// itself (scripts do that) chooses the option, and the page keeps its place while one chooses.
"use strict";
document.documentElement.classList.add("js");

const PLACE = "sero-place";

for (const input of document.querySelectorAll("input[type=radio][data-url]")) {
  input.addEventListener("click", () => {
    remember();
    window.location.href = input.dataset.url;
  });
}
for (const link of document.querySelectorAll("a.choose")) {
  link.addEventListener("click", remember);
}

function remember() {
  try {
    sessionStorage.setItem(PLACE, JSON.stringify([product(), window.scrollY]));
  } catch {
    // No storage (private mode): the page begins at its top.
  }
}

function product() {
  return window.location.pathname.split("/").slice(1, 4).join("/");
}

try {
  const kept = JSON.parse(sessionStorage.getItem(PLACE));
  sessionStorage.removeItem(PLACE);
  if (kept !== null && kept[0] === product()) {
    window.scrollTo({ top: kept[1], behavior: "instant" });
  }
} catch {
  // As above.
}
