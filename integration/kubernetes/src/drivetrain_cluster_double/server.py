"""The API server: what listens, and streams what watches are told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import threading
from collections import Counter
from pathlib import Path

from aiohttp import web

from drivetrain_cluster_double.authorize import check_allowed
from drivetrain_cluster_double.dispatch import Dispatcher, Reply
from drivetrain_cluster_double.errors import StatusError, not_done
from drivetrain_cluster_double.faults import Fault, Faults, fault_error
from drivetrain_cluster_double.listing import Watch, event_line
from drivetrain_cluster_double.routes import Call, Request, read_call

logger = logging.getLogger(__name__)


class ApiServer:
    """Serves the API of a cluster on this machine, in a thread of its own.

    Args:
        dispatcher: Does what calls ask for.
        tokens: Who calls, by their tokens; others may be added at any time.
        certificate: Of the server, with its key; None to serve without TLS.
        port: To listen on; 0 for any.
        bookmark_s: How often watches are told which version they have seen.

    Attributes:
        calls: How many calls there were, by verb and resource.
        faults: What goes wrong.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        tokens: dict[str, str],
        *,
        certificate: Path | None = None,
        port: int = 0,
        bookmark_s: float = 1.0,
    ) -> None:
        self._dispatcher, self._tokens = dispatcher, tokens
        self._certificate, self._port = certificate, port
        self._bookmark_s = bookmark_s
        self.calls: Counter[tuple[str, str]] = Counter()
        self.faults = Faults()
        self._loop = asyncio.new_event_loop()
        self._watches: set[Watch] = set()
        self._started, self._stop = threading.Event(), asyncio.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(
            target=self._run, name="double-api", daemon=True
        )

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http{'s' if self._certificate else ''}://127.0.0.1:{self._port}"

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
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def drop_watches(self) -> None:
        """Cuts all streams, as when the server is replaced."""
        self._loop.call_soon_threadsafe(self._drop_all)

    def _drop_all(self) -> None:
        for watch in self._watches:
            watch.drop()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except OSError as error:
            self._error = error
            self._started.set()
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = web.Server(self._handle, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await runner.setup()
        context = None
        if self._certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self._certificate)
        place = ("127.0.0.1", self._port)
        site = web.TCPSite(runner, *place, ssl_context=context, backlog=512)
        try:
            await site.start()
            self._port = runner.addresses[0][1]
            self._started.set()
            await self._stop.wait()
            self._drop_all()
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
            return _refusal(error)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            # As an API server does: a call that breaks it is answered, others go on.
            logger.exception("%s %s broke the double", request.method, request.path_qs)
            message = f"Internal error occurred: {type(error).__name__}: {error}"
            return _refusal(StatusError(500, "InternalError", message))

    async def _serve_request(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = request.headers
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        user = self._tokens.get(token) if scheme == "Bearer" else None
        if user is None:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        path, accept = request.path, headers.get("Accept", "")
        described = self._dispatcher.describe(path, accept)
        if described is not None:
            return _response(described)
        agent, form = headers.get("User-Agent", ""), headers.get("Content-Type", "")
        call = read_call(request.method, path, request.query, agent)
        if call is None:
            raise not_done(f"{request.method} {path}")
        form, body = form.partition(";")[0].strip(), await request.read()
        asked = Request(call, request.query, accept, form, body)
        self.calls[call.verb, call.target] += 1
        fault = self.faults.take(call)
        if fault is not None and fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        is_late = call.verb == "watch" and fault is not None and fault.after_events > 0
        if fault is not None and fault.when == "before" and not is_late:
            self._go_wrong(request, call, fault)
        check_allowed(self._dispatcher.api.store, user, call)
        if call.verb == "watch":
            return await self._watch(request, asked, fault)
        reply = self._dispatcher.do(asked)
        if fault is not None and fault.when == "after":
            self._go_wrong(request, call, fault)
        return _response(reply)

    def _go_wrong(self, request: web.BaseRequest, call: Call, fault: Fault) -> None:
        if fault.drop:
            _cut(request)
            raise ConnectionResetError("a fault was ordered")
        if fault.status:
            raise fault_error(fault, call)

    async def _watch(
        self, request: web.BaseRequest, asked: Request, fault: Fault | None
    ) -> web.StreamResponse:
        kind = self._dispatcher.kind_of(asked.call)
        watch = Watch(self._dispatcher.api.store, kind, asked)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        self._watches.add(watch)
        try:
            await response.prepare(request)
            # Cut by those at the other end, which is how most watches end.
            with contextlib.suppress(ConnectionError):
                await self._stream(request, response, watch, fault)
        finally:
            self._watches.discard(watch)
            watch.close()
        return response

    async def _stream(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse,
        watch: Watch,
        fault: Fault | None,
    ) -> None:
        timeout_s = float(watch.asked.query.get("timeoutSeconds") or 1800)
        end_s = self._loop.time() + timeout_s
        num_sent, next_mark_s = 0, self._loop.time() + self._bookmark_s
        while not watch.is_dropped:
            for text in watch.read():
                if fault is not None and num_sent >= fault.after_events:
                    if fault.status:
                        error = fault_error(fault, watch.asked.call).status()
                        await response.write(event_line("ERROR", error))
                    else:
                        _cut(request)
                    return
                await response.write(text)
                num_sent += 1
            now_s = self._loop.time()
            is_alone = request.transport is None or request.transport.is_closing()
            if watch.is_over or is_alone or now_s >= end_s:
                return
            if now_s >= next_mark_s:
                next_mark_s = now_s + self._bookmark_s
                if mark := watch.bookmark():
                    await response.write(mark)
            with contextlib.suppress(TimeoutError):
                wait_s = min(end_s, next_mark_s) - now_s
                await asyncio.wait_for(watch.news.wait(), wait_s)
        _cut(request)


def _cut(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()


def _response(reply: Reply) -> web.Response:
    headers = {"Content-Type": reply.content_type}
    response = web.Response(body=reply.body, status=reply.status, headers=headers)
    for warning in reply.warnings:
        text = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{text}"')
    return response


def _refusal(error: StatusError) -> web.Response:
    response = _response(Reply(json.dumps(error.status()).encode(), error.code))
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response
