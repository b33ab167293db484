"""The rules of the Chrome trace event format that a file must keep to open: keys, kinds, order, balance."""

ALWAYS = {"ph", "pid", "tid", "name"}
KEYS = {
    "M": {"args"},
    "B": {"ts", "cat"},
    "E": {"ts"},
    "X": {"ts", "dur", "cat"},
    "C": {"ts", "args"},
    "i": {"ts", "s"},
}
METADATA = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def problems(trace):
    """What is wrong with a trace, in words."""
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        yield "no object with a list traceEvents"
        return
    if trace.get("displayTimeUnit", "ms") not in ("ms", "ns"):
        yield "displayTimeUnit is neither ms nor ns"
    stacks, last = {}, {}
    for number, event in enumerate(trace["traceEvents"]):
        yield from (f"event {number}: {problem}" for problem in of_event(event, stacks, last))
    yield from (f"{track}: {names} never end" for track, names in stacks.items() if names)


def of_event(event, stacks, last):
    kind = event.get("ph")
    if kind not in KEYS:
        yield f"unknown kind {kind!r}"
        return
    if missing := (ALWAYS | KEYS[kind]) - event.keys():
        yield f"{kind} lacks {sorted(missing)}"
        return
    if not all(type(event[key]) is int for key in ("pid", "tid")):
        yield "pid and tid must be whole numbers"
    if kind == "M":
        if event["name"] not in METADATA or not isinstance(event["args"], dict):
            yield f"no such metadata as {event['name']}"
        return
    if not is_time(event["ts"]) or not is_time(event.get("dur", 0)):
        yield "ts and dur must be numbers of microseconds, at least 0"
        return
    track = event["pid"], event["tid"]
    if event["ts"] < last.get(track, 0):
        yield f"ts goes back from {last[track]} to {event['ts']}"
    last[track] = event["ts"]
    if kind == "B":
        stacks.setdefault(track, []).append(event["name"])
    elif kind == "E" and (not stacks.get(track) or stacks[track].pop() != event["name"]):
        yield f"{event['name']} ends, but was not the last to begin"
    elif kind == "C" and not all(is_number(value) for value in event["args"].values()):
        yield "a counter counts in numbers"
    elif kind == "i" and event["s"] not in ("g", "p", "t"):
        yield f"no scope {event['s']}"


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def is_time(value):
    return is_number(value) and value >= 0
