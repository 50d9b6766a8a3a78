"""A report as JUnit XML, one testcase for each finding, so that a CI gates on it as on any test."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from basert_fleet.cli.report import Finding, Report, Status
from basert_fleet.cli.visible import visible

SUITE = "basert-fleet check"
ELEMENTS = {Status.FAILED: "failure", Status.ERROR: "error", Status.UNTESTED: "skipped", Status.NOTED: "system-out"}
"""What a testcase holds; one that passed holds nothing. `failure` and `error` are those of exit status 1."""


def junit(report: Report) -> str:
    """Return the whole document."""
    counted = [finding.status for finding in report.findings]
    suite = ET.Element(
        "testsuite",
        name=SUITE,
        hostname=visible(report.url),
        tests=str(len(counted)),
        failures=str(counted.count(Status.FAILED)),
        errors=str(counted.count(Status.ERROR)),
        skipped=str(counted.count(Status.UNTESTED)),
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in (("url", report.url), ("model", report.model), ("recommendation", report.recommendation.yaml)):
        lines = value.splitlines()
        ET.SubElement(properties, "property", name=name, value="\n".join(map(visible, lines)))
    seconds = {shape.name: shape.seconds for shape in report.shapes}
    for finding in report.findings:
        _add(suite, finding, seconds.get(finding.name, 0.0))
    ET.indent(suite)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ET.tostring(suite, encoding='unicode')}\n"


def _add(suite: ET.Element, finding: Finding, seconds: float) -> None:
    case = ET.SubElement(suite, "testcase", classname=SUITE, name=finding.name, time=f"{seconds:.3f}")
    element = ELEMENTS.get(finding.status)
    if element is None:
        return
    text = visible(f"{finding.title}: {finding.detail}")
    if finding.status is Status.NOTED:
        ET.SubElement(case, element).text = text
    else:
        ET.SubElement(case, element, message=text)
