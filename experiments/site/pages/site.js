// A table that scrolls is reached by Tab.
document$.subscribe(() => document.querySelectorAll(".md-typeset__scrollwrap").forEach(one => { one.tabIndex = 0; }));
// The theme's search is a dialog without a name.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
// The theme names a list of headings after the one above it, and those repeat: "sequence" and "Sequence" on api.md.
document$.subscribe(() => {
  const seen = {};
  for (const list of document.querySelectorAll("nav[aria-label]")) {
    const name = list.getAttribute("aria-label"), key = name.toLowerCase();
    seen[key] = (seen[key] || 0) + 1;
    if (seen[key] > 1) list.setAttribute("aria-label", `${name} (${seen[key]})`);
  }
});
