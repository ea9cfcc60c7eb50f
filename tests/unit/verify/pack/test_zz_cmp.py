import io, json, random, importlib.util, sys, zipfile, traceback
from contextlib import redirect_stdout
from pathlib import Path
import pytest
from app.evidence import pack
from tests.unit.verify import packs
from tests.unit.verify.pack.checking import files_of, resealed, zipped, PACK, POLICY

def load(name):
    spec = importlib.util.spec_from_file_location(name, f"/tmp/v/{name}.py")
    m = importlib.util.module_from_spec(spec); sys.modules[name] = m; spec.loader.exec_module(m); return m
OLD, NEW = load("old_verify"), load("new_verify")
import app.evidence.verify as V
OLD.__file__ = NEW.__file__ = V.__file__

def run(m, args):
    out = io.StringIO()
    try:
        with redirect_stdout(out):
            code = m.main([str(a) for a in args])
    except BaseException as e:
        code = repr(e)[:100]
    return code, out.getvalue()

SESSION = b"".join(pack.write_session(packs.session_evidence()))
def test_cmp(tmp_path, roots):
    rng = random.Random(11)
    seen = {}; diffs = 0
    for kind, whole in (("rec", PACK), ("ses", SESSION)):
        files = files_of(whole)
        other = files_of(SESSION if kind == "rec" else PACK)
        for n in range(2500):
            f = dict(files)
            how = rng.randrange(7)
            name = rng.choice(sorted(f))
            d = bytearray(f[name])
            if how == 0 and d:
                d[rng.randrange(len(d))] ^= 1 << rng.randrange(8); f[name] = bytes(d)
            elif how == 1 and d:
                f[name] = bytes(d[:rng.randrange(len(d))])
            elif how == 2:
                del f[name]
            elif how == 3:
                o = rng.choice(sorted(f)); f[name], f[o] = f[o], f[name]
            elif how == 4:
                o = rng.choice(sorted(other)); f[o] = other[o]
            elif how == 5 and d:
                lines = bytes(d).split(b"\n"); rng.shuffle(lines); f[name] = b"\n".join(lines)
            else:
                # JSON mutation
                try:
                    ls = f[name].split(b"\n")
                    at = rng.randrange(len(ls)) if len(ls) > 1 else 0
                    v = json.loads(ls[at])
                    sub = v
                    while isinstance(sub, dict) and rng.random() < .5:
                        ks = [k for k in sub if isinstance(sub[k], dict) and sub[k]]
                        if not ks: break
                        sub = sub[rng.choice(ks)]
                    if isinstance(v, dict) and v:
                        k = rng.choice(sorted(sub)); sub[k] = rng.choice([None, 1, "x", [], {}, True, -1])
                        from app.lib import canonical_json
                        ls[at] = canonical_json.dumps(v); f[name] = b"\n".join(ls)
                except Exception: pass
            try:
                data = resealed(f) if rng.random() < .8 and "manifest.json" in f else zipped(f)
            except Exception:
                data = zipped(f)
            p = tmp_path / "p.zip"; p.write_bytes(data)
            args = [p, *(roots if n % 2 else [])]
            a, b = run(OLD, args), run(NEW, args)
            a = (a[0], a[1].replace("old_verify", "verify")); b = (b[0], b[1].replace("new_verify", "verify"))
            seen[(kind, b[0])] = seen.get((kind, b[0]), 0) + 1
            if a != b:
                import difflib
                delta = [l for l in difflib.unified_diff(a[1].splitlines(), b[1].splitlines(), lineterm="", n=0) if "release" not in l and l[:2] not in ("--","++","@@")]
                if delta or a[0] != b[0]:
                    diffs += 1
                    if diffs < 15: print(kind, how, name, a[0], b[0], *delta[:6], sep="\n   ")
    print(seen, "diffs", diffs)
    assert 0
