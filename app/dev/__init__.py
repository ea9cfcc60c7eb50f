"""The service on one machine: embedded stores, and the runner behind `make up`.

Nothing here is imported by the product. It is for Linux, where a process can be tied to the life of
the one that started it. `up` takes `data_dir`, `locks` and `env_file`, starts `stores/`, reads the
`procfile`, runs it by `runner` (`output`, `stop_request`) until `readiness`; `refusal` says why
not. `stack` and `tsa` serve `demo/`; `uv_requirement` serves the Makefile.
"""
