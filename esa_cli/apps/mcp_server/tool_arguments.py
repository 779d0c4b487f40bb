"""Arguments of the tools; their descriptions are what a client's model reads."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import GenerateJsonSchema

LONGEST_QUESTION = 8000
"""Characters."""
LONGEST_TEXT = 20_000
"""Characters of a document in one answer, before or after an offset."""

Name = Annotated[str, Field(min_length=1, max_length=4096)]
Words = Annotated[str, Field(min_length=1, max_length=LONGEST_QUESTION)]
_NAMES = (
    "Documents by the id or name that `list` shows, or files of allowed folders by their path; "
    "without it the whole library."
)


class ToolArguments(BaseModel):
    """Arguments of a tool; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid")


class FindArguments(ToolArguments):
    query: Words = Field(description="Words or a question.")
    documents: list[Name] | None = Field(None, max_length=100, description=_NAMES)
    limit: int = Field(8, ge=1, le=50, description="Passages at most.")


class AskArguments(ToolArguments):
    question: Words = Field(description="One question, complete in itself.")
    documents: list[Name] | None = Field(None, max_length=100, description=_NAMES)
    passages: int = Field(3, ge=1, le=20, description="Passages to return with the answer.")
    read: bool = Field(
        False,
        description="Have the model read the named documents first where it has not: more exact, "
        "but minutes for a book. Else their words are searched.",
    )


class IngestArguments(ToolArguments):
    documents: list[Name] = Field(
        min_length=1,
        max_length=100,
        description="Files of allowed folders by their path, or documents that `list` shows as "
        "`words`.",
    )


class ListArguments(ToolArguments):
    containing: str = Field("", max_length=4096, description="Part of a name or path.")
    limit: int = Field(50, ge=1, le=500, description="Documents at most.")
    skip: int = Field(0, ge=0, description="Documents to leave out, for the next page.")


class ShowArguments(ToolArguments):
    document: Name = Field(description="Its id, name or path, as `find` and `list` show it.")
    offset: int = Field(0, ge=0, description="A character of its text, such as `start`.")
    before: int = Field(500, ge=0, le=LONGEST_TEXT, description="Characters before the offset.")
    after: int = Field(2000, ge=1, le=LONGEST_TEXT, description="Characters from the offset on.")


class _WithoutTitles(GenerateJsonSchema):
    """Schemas without titles that repeat the names: a model reads them in every conversation."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a tool's arguments or result."""
    schema = model.model_json_schema(schema_generator=_WithoutTitles)
    for part in (schema, *schema.get("$defs", {}).values()):
        part.pop("title", None)
        part.pop("description", None)
    return schema
