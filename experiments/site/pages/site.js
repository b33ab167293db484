// A table that scrolls is reached by Tab.
document$.subscribe(() => document.querySelectorAll(".md-typeset__scrollwrap").forEach(one => { one.tabIndex = 0; }));
