"""The server against its own description: what schemathesis makes up from /openapi.json is answered as that says."""

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]


def test_every_answer_is_as_described(address: str) -> None:
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    for operation in operations:

        @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        @given(case=operation.as_strategy())
        def ask(case) -> None:
            case.call_and_validate(checks=CHECKS, timeout=30)

        ask()
    assert len(operations) >= 10
