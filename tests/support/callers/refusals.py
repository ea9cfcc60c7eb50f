"""Bodies that no route may accept, byte for byte, with the status and the pointer each must get.

The parser's own tests read `REFUSED`, and the API's tests post the same bytes. The grammar is that
of `json`; what this would let through is here, and what tries it by size. Status 400 is what is not
JSON in UTF-8; 422 is JSON outside I-JSON, with a pointer.
"""

from app.lib.canonical_json import MAX_DEPTH

_TOO_DEEP = MAX_DEPTH + 1
_IN_ARRAYS = "/0" * MAX_DEPTH

REFUSED: list[tuple[str, bytes, int, str | None]] = [
    ("empty", b"", 400, None),
    ("only white space", b" \t\r\n", 400, None),
    ("byte-order mark", b'\xef\xbb\xbf{"a":1}', 400, None),
    ("UTF-16", '{"a":1}'.encode("utf-16"), 400, None),
    ("Latin-1", '{"a":"é"}'.encode("latin-1"), 400, None),
    ("overlong UTF-8", b'{"a":"\xc0\xaf"}', 400, None),
    ("a surrogate as bytes", b'{"a":"\xed\xa0\x80"}', 400, None),
    ("NaN", b'{"a":NaN}', 400, None),
    ("Infinity", b'{"a":Infinity}', 400, None),
    ("-Infinity", b'{"a":-Infinity}', 400, None),
    ("trailing data", b'{"a":1} {"b":2}', 400, None),
    ("trailing comma in an object", b'{"a":1,}', 400, None),
    ("trailing NUL", b'{"a":1}\x00', 400, None),
    ("a no-break space as white space", '{"a":\u00a01}'.encode(), 400, None),
    ("a leading zero", b'{"a":01}', 400, None),
    ("Arabic-Indic digits", '{"a":\u0661\u0662}'.encode(), 400, None),
    ("digits of full width", '{"a":1\uff11}'.encode(), 400, None),
    ("an unclosed array", b"[1", 400, None),
    ("a raw newline in a string", b'{"a":"\n"}', 400, None),
    ("a raw NUL in a string", b'{"a":"\x00"}', 400, None),
    ("an escape with a sign", b'{"a":"\\u+041"}', 400, None),
    ("many open strings", b'"' + b'\\"' * 50_000, 400, None),
    ("a name twice, then not JSON", b'[{"a":1,"a":2},', 400, None),
    ("a large integer, then not JSON", b"[9007199254740992,", 400, None),
    ("not JSON before it is too deep", b"[1 " + b"[" * _TOO_DEEP, 400, None),
    ("brackets that never match, many", b"[}" * 1000, 400, None),
    ("a name twice", b'{"a":1,"a":1}', 422, "/a"),
    ("a name twice, once escaped", b'{"a":1,"\\u0061":2}', 422, "/a"),
    ("a name twice, within", b'{"a":[{"b":1},{"c":{"d":1,"d":2}}]}', 422, "/a/1/c/d"),
    ("a name twice that a pointer escapes", b'{"~a/b":1,"~a/b":2}', 422, "/~0a~1b"),
    ("2^53", b'{"a":9007199254740992}', 422, "/a"),
    ("-2^53", b'{"a":-9007199254740992}', 422, "/a"),
    ("a 64-bit integer", b"[0,18446744073709551615]", 422, "/1"),
    ("2^53 with a fraction", b'{"a":9007199254740992.0}', 422, "/a"),
    ("2^53+1 with a fraction", b'{"a":9007199254740993.0}', 422, "/a"),
    ("an integer with an exponent", b'{"a":1e17}', 422, "/a"),
    ("the largest without an exponent", b'{"a":-999999999999999900000.0}', 422, "/a"),
    ("18 digits", b'{"a":[0,0.123456789012345678]}', 422, "/a/1"),
    ("18 digits with an exponent", b'{"a":1.23456789012345678e+40}', 422, "/a"),
    ("a fraction of 100,000 digits", b'{"a":0.' + b"1" * 100_000 + b"}", 422, "/a"),
    ("smaller than any double", b'{"a":1e-400}', 422, "/a"),
    ("an integer of 100,000 digits", b"1" * 100_000, 422, ""),
    ("1e400", b'{"a":1e400}', 422, "/a"),
    ("a high surrogate", b'{"a":"\\ud83d"}', 422, "/a"),
    ("a low surrogate", b'["\\uDE00"]', 422, "/0"),
    ("a high surrogate and text", b'["\\ud83d\\\\ude00"]', 422, "/0"),
    ("a surrogate in a name", b'{"a":{"\\ud83d":1}}', 422, "/a"),
    ("129 arrays", b"[" * _TOO_DEEP + b"]" * _TOO_DEEP, 422, _IN_ARRAYS),
    ("129 objects", b'{"a":' * _TOO_DEEP + b"1" + b"}" * _TOO_DEEP, 422, "/a" * MAX_DEPTH),
    ("129 levels, mixed", b'[{"a":' * 64 + b"[" + b"]" + b"}]" * 64, 422, "/0/a" * 64),
    (
        "too deep at the end",
        b"[" + b"[]," * 200 + b"[" * 128 + b"]" * 129,
        422,
        "/200" + "/0" * 127,
    ),
    ("too deep behind brackets in a string", b'["]]\\"]",' + b"[" * 128, 422, "/1" + "/0" * 127),
    ("100,000 objects", b'{"a":' * 100_000, 422, "/a" * MAX_DEPTH),
    ("the first of two faults", b'{"b":{"c":1e400},"a":1,"a":2}', 422, "/b/c"),
]
