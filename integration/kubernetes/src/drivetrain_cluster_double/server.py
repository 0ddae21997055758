"""The API server: what listens, and streams what watches are told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import threading
from collections import Counter
from typing import TYPE_CHECKING

from drivetrain_cluster_double.dispatch import Reply, Request, wants_table
from drivetrain_cluster_double.errors import (
    StatusError,
    path_not_found,
    too_large_revision,
    unauthorized,
)
from drivetrain_cluster_double.faults import Fault, Faults, fault_error
from drivetrain_cluster_double.routes import Call, read_call
from drivetrain_cluster_double.watch import Watch, WatchHub
from drivetrain_core import MissingLibraryError

if TYPE_CHECKING:
    from types import ModuleType

    from aiohttp import web

    from drivetrain_cluster_double.authorize import User
    from drivetrain_cluster_double.certificates import Certificates
    from drivetrain_cluster_double.dispatch import Dispatcher

__all__ = ["ApiServer"]

logger = logging.getLogger(__name__)

_BOOKMARK_S = 1.0


class ApiServer:
    """Serves the API of a cluster on this machine, in a thread of its own.

    Args:
        dispatcher: Does what calls ask for.
        tokens: Who calls, by their tokens; others may be added at any time.
        certificates: Of the server; None to serve without TLS.
        port: To listen on; 0 for any.
        bookmark_s: How often watches are told which version they have seen.

    Attributes:
        calls: How many calls there were, by verb and resource.
        faults: What goes wrong.

    Raises:
        MissingLibraryError: aiohttp is not installed.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        tokens: dict[str, User],
        *,
        certificates: Certificates | None = None,
        port: int = 0,
        bookmark_s: float = _BOOKMARK_S,
    ) -> None:
        self._web = _import_web()
        self._dispatcher, self._tokens = dispatcher, tokens
        self._certificates, self._port = certificates, port
        self._bookmark_s = bookmark_s
        self.calls: Counter[tuple[str, str]] = Counter()
        self.faults = Faults()
        self._loop = asyncio.new_event_loop()
        self._hub = WatchHub(dispatcher.api.store, self._loop)
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, name="kubernetes-double-api", daemon=True
        )

    @property
    def url(self) -> str:
        """Where it is."""
        scheme = "https" if self._certificates else "http"
        return f"{scheme}://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Begins to listen.

        Raises:
            OSError: The port is taken.
        """
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Ends all connections, and listens no more."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end)
            self._thread.join()

    def _end(self) -> None:
        if self._stop is not None:
            self._stop.set()

    def drop_watches(self) -> None:
        """Cuts all streams, as when the server is replaced."""
        self._loop.call_soon_threadsafe(self._hub.drop_all)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except OSError as error:
            self._error = error
            self._started.set()
        finally:
            self._hub.close()
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = self._web.Server(self._handle, access_log=None)
        runner = self._web.ServerRunner(server, shutdown_timeout=0.1)
        await runner.setup()
        context = None
        if self._certificates is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(
                self._certificates.certificate, self._certificates.key
            )
        site = self._web.TCPSite(
            runner, "127.0.0.1", self._port, ssl_context=context, backlog=512
        )
        try:
            await site.start()
            assert site._server is not None
            self._port = site._server.sockets[0].getsockname()[1]
            self._started.set()
            await self._stop.wait()
            self._hub.drop_all()
        finally:
            # Closed politely, one would wait for a client that does not answer.
            for connection in server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()
            # What was cut is closed by the loop, a moment later.
            await asyncio.sleep(0.01)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._serve_request(request)
        except StatusError as error:
            return self._refuse(error)
        except MissingLibraryError as error:
            return self._refuse(StatusError(500, "InternalError", str(error)))
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            # As an API server does: a call that breaks it is answered, others go on.
            logger.exception("%s %s broke the double", request.method, request.path_qs)
            message = f"Internal error occurred: {type(error).__name__}: {error}"
            return self._refuse(StatusError(500, "InternalError", message))

    async def _serve_request(self, request: web.BaseRequest) -> web.StreamResponse:
        user = self._user(request)
        path, accept = request.path, request.headers.get("Accept", "")
        described = self._dispatcher.describe(path, accept)
        if described is not None:
            return self._response(described)
        agent = request.headers.get("User-Agent", "")
        call = read_call(request.method, path, request.query, agent)
        if call is None:
            raise path_not_found()
        content_type = request.headers.get("Content-Type", "")
        body = await request.read()
        asked = Request(request.query, accept, content_type, body, user)
        return await self._answer(request, call, asked)

    def _user(self, request: web.BaseRequest) -> User:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        user = self._tokens.get(token) if kind == "Bearer" else None
        if user is None:
            raise unauthorized()
        return user

    async def _answer(
        self, request: web.BaseRequest, call: Call, asked: Request
    ) -> web.StreamResponse:
        self.calls[call.verb, call.target] += 1
        fault = self.faults.take(call)
        if fault is not None and fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        is_late = call.verb == "watch" and fault is not None and fault.after_events > 0
        if fault is not None and fault.when == "before" and not is_late:
            self._go_wrong(request, call, fault)
        self._dispatcher.check(call, asked)
        if call.verb == "watch":
            return await self._watch(request, call, asked, fault)
        reply = self._dispatcher.do(call, asked)
        if fault is not None and fault.when == "after":
            self._go_wrong(request, call, fault)
        return self._response(reply)

    def _go_wrong(self, request: web.BaseRequest, call: Call, fault: Fault) -> None:
        if fault.drop:
            if request.transport is not None:
                request.transport.abort()
            message = "a fault was ordered"
            raise ConnectionResetError(message)
        if fault.status:
            raise fault_error(fault, call)

    def _response(self, reply: Reply) -> web.Response:
        headers = {"Content-Type": reply.content_type}
        response = self._web.Response(
            body=reply.body, status=reply.status, headers=headers
        )
        for warning in reply.warnings:
            text = warning.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.add("Warning", f'299 - "{text}"')
        found: web.Response = response
        return found

    def _refuse(self, error: StatusError) -> web.Response:
        response = self._response(
            Reply(json.dumps(error.status()).encode(), error.code)
        )
        if error.retry_after_s is not None:
            response.headers["Retry-After"] = str(error.retry_after_s)
        return response

    async def _watch(
        self, request: web.BaseRequest, call: Call, asked: Request, fault: Fault | None
    ) -> web.StreamResponse:
        api = self._dispatcher.api
        kind = api.catalog.find(call.group, call.version, call.resource)
        watch = Watch(
            api.store, kind, call, asked.query, is_table=wants_table(asked.accept)
        )
        if watch.revision > api.store.revision:
            raise too_large_revision(watch.revision, api.store.revision)
        response: web.StreamResponse = self._web.StreamResponse(
            headers={"Content-Type": "application/json"}
        )
        response.enable_chunked_encoding()
        await response.prepare(request)
        # Cut by those at the other end, which is how most watches end.
        with contextlib.suppress(ConnectionError), self._hub.joined(watch):
            await self._stream(request, call, response, watch, fault)
        return response

    async def _stream(
        self,
        request: web.BaseRequest,
        call: Call,
        response: web.StreamResponse,
        watch: Watch,
        fault: Fault | None,
    ) -> None:
        timeout_s = float(watch.query.get("timeoutSeconds") or 1800)
        end_s = self._loop.time() + timeout_s
        num_sent, next_mark_s = 0, self._loop.time() + self._bookmark_s
        while not watch.is_dropped:
            watch.news.clear()
            for text in watch.read():
                if fault is not None and num_sent >= fault.after_events:
                    if fault.status:
                        await response.write(watch.error(fault_error(fault, call)))
                    elif request.transport is not None:
                        request.transport.abort()
                    return
                await response.write(text)
                num_sent += 1
            is_alone = request.transport is None or request.transport.is_closing()
            if watch.is_over or is_alone:
                return
            now_s = self._loop.time()
            if now_s >= next_mark_s:
                next_mark_s = now_s + self._bookmark_s
                if mark := watch.bookmark():
                    await response.write(mark)
            if now_s >= end_s:
                return
            wait_s = min(end_s, next_mark_s) - now_s
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(watch.news.wait(), wait_s)
        if request.transport is not None:
            request.transport.abort()


def _import_web() -> ModuleType:
    try:
        from aiohttp import web
    except ImportError as error:
        message = (
            "the double of an API server needs the library aiohttp: "
            "pip install integration/kubernetes"
        )
        raise MissingLibraryError(message) from error
    found: ModuleType = web
    return found
