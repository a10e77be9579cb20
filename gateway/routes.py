"""The table of routes, and what each of them asks of its caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.abc import AbstractMatchInfo

from .auth import Access
from .errors import ApiError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """`work` is what a draining server refuses: requests that make the engine run. `says` puts errors into its dialect."""

    method: str
    path: str
    handler: Handler
    access: Access = Access.KEY
    work: bool = False
    says: Callable[[ApiError], web.Response] = ApiError.response


class RouteTable:
    """Knows a request by the route it matched, never by the spelling of its path. What is not in it asks for a key."""

    def __init__(self, app: web.Application, routes: Iterable[Route]) -> None:
        self._routes = {
            app.router.add_route(method, route.path, route.handler): route
            for route in routes
            for method in _methods(route)
        }

    def access(self, match: AbstractMatchInfo) -> Access:
        route = self._find(match)
        return Access.KEY if route is None else route.access

    def is_work(self, match: AbstractMatchInfo) -> bool:
        route = self._find(match)
        return route is not None and route.work

    def error(self, match: AbstractMatchInfo, error: ApiError) -> web.Response:
        route = self._find(match)
        return error.response() if route is None else route.says(error)

    def label(self, match: AbstractMatchInfo) -> str:
        """The route's pattern, for metrics and logs: a fixed set whatever clients ask for."""
        route = self._find(match)
        return "unknown" if route is None else route.path

    def _find(self, match: AbstractMatchInfo) -> Route | None:
        return self._routes.get(match.route) if isinstance(match, web.UrlMappingMatchInfo) else None


def _methods(route: Route) -> tuple[str, ...]:
    """What can be read can be asked about (RFC 9110, 9.1): balancers check health with HEAD."""
    return ("GET", "HEAD") if route.method == "GET" else (route.method,)
