"""The service on one Linux machine: embedded stores, and the runner behind `make up`.

`up` takes `data_dir` (`locks`, `env_file`), starts `stores/`, reads the `procfile`, and lets the
`runner` keep its `processes`; `refusal` says why not. `stack` and `tsa` serve `demo/`;
`uv_requirement` serves the Makefile.
"""
