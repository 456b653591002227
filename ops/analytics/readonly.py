"""Which queries only read the tables: Spark has no such mode, so the plans of a query are compared with lists.

A plan is refused unless each of its nodes is known to read only. Spark and Delta Lake have statements that write, or
that run a program, without being a `Command` (TRANSFORM, RESTORE, INSERT), and a later version may have others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ops.analytics.errors import BadQuery
from ops.analytics.schema import TABLES


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Nodes of the plan of a SELECT, before or after its names are resolved: classes of Spark's catalyst.
_READS = _words(
    "Aggregate CTERelationDef CTERelationRef CommandResult Deduplicate Distinct Except Expand Filter Generate "
    "GlobalLimit Intersect Join LateralJoin LimitAll LocalLimit LocalRelation Offset OneRowRelation PipeOperator Pivot "
    "Project Range RebalancePartitions Repartition RepartitionByExpression ResolvedHint Sample Sort SubqueryAlias Tail "
    "Union UnionLoop UnionLoopRef Unpivot Window WithCTE WithWindowDefinition UnresolvedHaving UnresolvedHint "
    "UnresolvedInlineTable UnresolvedQualify UnresolvedSubqueryColumnAliases UnresolvedTVFAliases UnresolvedWith"
)
#: Nodes that name a table, as a list of the parts of its name.
_NAMES_A_TABLE = ("UnresolvedRelation", "UnresolvedTableOrView")
#: Statements that only describe, and what they name.
_DESCRIBES = frozenset({"ShowTables", "ShowColumns", "DescribeRelation", "CurrentNamespace$"})
#: What a reader of the refusal knows a node by.
_KNOWN_AS = {"ScriptTransformation": "TRANSFORM"}
#: Functions that return rows. Others of Spark and Delta Lake read state or tables by their paths.
_TABLE_FUNCTIONS = _words(
    "explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range stack"
)
#: Functions that call any method of Java, or read the file that a parameter names.
_FUNCTIONS = _words("from_protobuf from_xml java_method reflect schema_of_xml to_protobuf try_reflect")
_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_SUBQUERY = "org.apache.spark.sql.catalyst.expressions.PlanExpression"
_REFLECTION = "CallMethodViaReflection"


def check_parsed(spark: Any, text: str) -> None:
    """Raise BadQuery for a text that does more than read the tables; what Spark cannot parse raises its own error."""
    if not text:
        raise BadQuery('the query is empty: an example is "SELECT outcome, count(*) FROM moves GROUP BY outcome"')
    _check(spark._jsparkSession.sessionState().sqlParser().parsePlan(text))


def check_analyzed(found: Any) -> None:
    """Raise BadQuery for a DataFrame that reads anything but the views of the tables, or calls a method of Java."""
    plan = found._jdf.queryExecution().analyzed()
    if not _is_a(plan, _COMMAND):  # one that describes, as its text was checked
        _check(plan)


def _check(plan: Any) -> None:
    for node in _nodes(plan):
        kind = str(node.getClass().getSimpleName())
        if kind in _NAMES_A_TABLE:
            _check_table([str(part) for part in _each(node.multipartIdentifier())])
        elif kind == "View":
            _check_table([str(node.desc().identifier().table())], alone=True)
        elif kind == "UnresolvedTableValuedFunction":
            _check_table_function([str(part) for part in _each(node.name())])
        elif kind not in _READS and kind not in _DESCRIBES:
            name = _KNOWN_AS.get(kind, str(node.nodeName()))
            raise BadQuery(f"the query is not a SELECT ({name}): the tables are only read, exports change them")
        for expression in _expressions(node, kind):
            _check_expression(expression)


def _nodes(plan: Any) -> Iterator[Any]:
    """Yield a plan's nodes with those of its subqueries, but not what a view consists of; parents come first."""
    yield plan
    if plan.getClass().getSimpleName() == "View":
        return
    for children in (plan.children(), plan.innerChildren()):
        for child in _each(children):
            yield from _nodes(child)
    if plan.getClass().getSimpleName() == "WithWindowDefinition":
        for window in _each(plan.windowDefinitions().values().toSeq()):
            for subquery in _subqueries(window):
                yield from _nodes(subquery)


def _expressions(node: Any, kind: str) -> Iterator[Any]:
    if kind == "View":
        return
    yield from _each(node.expressions())
    if kind == "WithWindowDefinition":  # a map, in which Spark itself finds no expressions
        yield from _each(node.windowDefinitions().values().toSeq())


def _subqueries(expression: Any) -> Iterator[Any]:
    if _is_a(expression, _SUBQUERY):
        yield expression.plan()
    for child in _each(expression.children()):
        yield from _subqueries(child)


def _check_expression(expression: Any) -> None:
    kind = str(expression.getClass().getSimpleName())
    name = ""
    if kind == "UnresolvedFunction":
        name = str(expression.nameParts().last()).lower()
    elif kind == "ExpressionWithUnresolvedIdentifier":
        raise BadQuery("the query computes a name (IDENTIFIER): write the name itself")
    if name in _FUNCTIONS or kind == _REFLECTION:
        called = name or "a method of Java"
        raise BadQuery(f"the query calls {called}, which runs code or reads files: a query only reads the tables")
    for child in _each(expression.children()):
        _check_expression(child)


def _check_table(parts: list[str], *, alone: bool = False) -> None:
    """Raise BadQuery for a name of several parts that is not a table's; one part can only be a view or a WITH."""
    name = ".".join(parts)
    known = {table.name for table in TABLES} | {f"{table.layer}.{table.name}" for table in TABLES}
    if name.lower() not in known and (alone or len(parts) > 1):
        names = ", ".join(table.name for table in TABLES)
        raise BadQuery(f"{name} is not a table that a query can read. The tables are {names}")


def _check_table_function(parts: list[str]) -> None:
    name = parts[-1]
    if name.lower() not in _TABLE_FUNCTIONS:
        raise BadQuery(
            f"the query reads the function {name}: only {', '.join(sorted(_TABLE_FUNCTIONS))} return rows here"
        )


def _is_a(found: Any, kind: str) -> bool:
    return bool(found.getClass().getClassLoader().loadClass(kind).isInstance(found))


def _each(found: Any) -> Iterator[Any]:
    """Yield the elements of a sequence of Scala."""
    for place in range(found.size()):
        yield found.apply(place)
