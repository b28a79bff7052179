import base64, json, os, stat, sys
a = json.loads(base64.b64decode(sys.argv[1]))
p = a["path"]
def entry(name, s):
    m = s.st_mode
    kind = "file" if stat.S_ISREG(m) else "directory" if stat.S_ISDIR(m) else "symlink" if stat.S_ISLNK(m) else "other"
    name = name.encode("utf-8", "replace").decode()
    return {"name": name, "kind": kind, "size": s.st_size, "modified_ms": s.st_mtime_ns // 1000000}
def opened(flags):
    f = os.open(p, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(f).st_mode):
        raise OSError("not a regular file: " + p)
    return f
def run():
    if a["op"] == "stat":
        try:
            return {"entry": entry(os.path.basename(p.rstrip("/")) or "/", os.lstat(p))}
        except (FileNotFoundError, NotADirectoryError):
            return {"entry": None}
    if a["op"] == "list":
        with os.scandir(p) as found:
            return {"entries": [entry(e.name, e.stat(follow_symlinks=False)) for e in found]}
    if a["op"] == "read":
        f = opened(os.O_RDONLY)
        return {"data": base64.b64encode(os.pread(f, a["limit"], a["offset"])).decode()}
    os.makedirs(os.path.dirname(p) or "/", exist_ok=True)
    f = opened(os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if not a["append"]:
        os.ftruncate(f, 0)
    data = base64.b64decode(a["data"])
    while data:
        data = data[os.write(f, data):]
    return {}
try:
    r = run()
except FileNotFoundError as e:
    r = {"failure": {"kind": "file_not_found", "message": str(e)}}
except OSError as e:
    r = {"failure": {"kind": "file_failed", "message": str(e)}}
print(json.dumps(r))
