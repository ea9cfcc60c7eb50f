"""The front door: spans that exporters send become records.

`staging` stores them as they come, `assembly` makes records of them once their root has ended, in
the sessions that `homes` finds; `traces` shows what became of each trace.
"""
