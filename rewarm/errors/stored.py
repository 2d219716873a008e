"""Responses in the background, files and batches."""

from __future__ import annotations

from rewarm.errors.base import RewarmError


class ResponseNotFound(RewarmError):
    code = "response_not_found"
    status = 404
    type = "invalid_request_error"
    should_retry = False
    advice = (
        "No response of this key has this id. Only responses with `background: true` are kept, until `jobs.retention` "
        "(7 days) after their end."
    )


class ResponseActive(RewarmError):
    code = "response_active"
    status = 409
    type = "invalid_request_error"
    retry_after_s = 1
    advice = "The response is still being cancelled; delete it once it has ended."


class StoredFileNotFound(RewarmError):
    code = "file_not_found"
    status = 404
    type = "invalid_request_error"
    should_retry = False
    advice = "No file of this key has this id: another key's are not shown, and files go after `files.retention`."


class FileTooLarge(RewarmError):
    code = "file_too_large"
    status = 413
    type = "invalid_request_error"
    should_retry = False
    advice = "The file is over `files.max_file` (16 MiB by default): files are kept in Redis. Split it."


class FilesFull(RewarmError):
    code = "files_full"
    status = 507
    type = "overloaded_error"
    should_retry = False
    advice = "Files take all the bytes that `files` gives this key, or all keys, or that Redis has: delete some."


class FileInUse(RewarmError):
    code = "file_in_use"
    status = 409
    type = "invalid_request_error"
    should_retry = False
    advice = "A batch that has not ended reads the file: cancel the batch first."


class BatchNotFound(RewarmError):
    code = "batch_not_found"
    status = 404
    type = "invalid_request_error"
    should_retry = False
    advice = "No batch of this key has this id: another key's are not shown, and batches go after `files.retention`."


class BatchEnded(RewarmError):
    code = "batch_ended"
    status = 409
    type = "invalid_request_error"
    should_retry = False
    advice = "The batch has ended already: there is nothing to cancel."


class BatchesFull(RewarmError):
    code = "batches_full"
    status = 503
    type = "overloaded_error"
    retry_after_s = 8
    advice = "As many batches are under way as a fleet works on at once (1,000); try again when some have ended."
