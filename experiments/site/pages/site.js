// A table that scrolls is reached by Tab.
document$.subscribe(() => document.querySelectorAll(".md-typeset__scrollwrap").forEach(one => { one.tabIndex = 0; }));
// The theme's search is a dialog without a name.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
