"""The service on one Linux machine: embedded stores, and the runner behind `make up`.

`up` takes `data_dir`, `locks` and `env_file`, starts `stores/`, reads the `procfile`, runs it by
`runner` (`output`, `stop_request`) until `readiness`; `refusal` says why not. `stack` and `tsa`
serve `demo/`; `uv_requirement` serves the Makefile.
"""
