"""A bare Flask route: it reads JSON, inserts two rows with one statement, and answers."""

import os
import threading
from typing import Any

import psycopg
from flask import Flask, Response, jsonify, request

TABLE = "CREATE TABLE things (id bigserial PRIMARY KEY, kind text NOT NULL, body text NOT NULL)"
_INSERT = "INSERT INTO things (kind, body) VALUES ('finding', %s), ('delivery', %s)"

_thread = threading.local()


def _connection() -> "psycopg.Connection[tuple[Any, ...]]":
    if not hasattr(_thread, "connection"):
        _thread.connection = psycopg.connect(os.environ["PEER_DATABASE_URL"], autocommit=True)
    connection: psycopg.Connection[tuple[Any, ...]] = _thread.connection
    return connection


def create_app() -> Flask:
    """Make the application."""
    app = Flask(__name__)

    @app.post("/v1/findings")
    def create() -> tuple[Response, int]:
        body = request.get_json()
        _connection().execute(_INSERT, (body["title"], body["detail"]))
        return jsonify(body), 201

    return app
