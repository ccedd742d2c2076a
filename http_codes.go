package main

// problemCode is the stable code of a problem, for scripts.
type problemCode string

// fieldCode is the stable code of what is wrong with one field.
type fieldCode string

// The codes of requests that cannot be read, or that ask for something impossible.
const (
	// The query string is malformed, or not UTF-8 text.
	codeMalformedQuery problemCode = "malformed_query"
	// The route has no query parameter of this name.
	codeUnknownParameter problemCode = "unknown_parameter"
	// A query parameter appears twice.
	codeDuplicateParameter problemCode = "duplicate_parameter"
	// A value is of another type than the field or query parameter.
	codeWrongType problemCode = "wrong_type"
	// The cursor belongs to another list or other filters, or is not a cursor.
	codeInvalidCursor problemCode = "invalid_cursor"
	// The body is not a JSON object in UTF-8, or it has too many names or items.
	codeMalformedJSON problemCode = "malformed_json"
	// Something follows the JSON object in the body.
	codeTrailingData problemCode = "trailing_data"
	// The body has a field that the route does not know.
	codeUnknownField problemCode = "unknown_field"
	// The body has a field twice.
	codeDuplicateField problemCode = "duplicate_field"
	// The body of a form on a page is malformed.
	codeMalformedForm problemCode = "malformed_form"
	// The body did not arrive whole within ten seconds.
	codeBodyUnreadable problemCode = "body_unreadable"
	// The body is larger than the route takes.
	codeBodyTooLarge problemCode = "body_too_large"
	// The body is not of the type that the route takes: JSON in UTF-8, or a form on pages.
	codeUnsupportedMediaType problemCode = "unsupported_media_type"
	// Values of fields are wrong; `errors` says which, and why.
	codeInvalid problemCode = "invalid"
	// The search has two parameters that exclude each other.
	codeExclusive problemCode = "exclusive"
	// There is no such path or object, or the caller may not know of it.
	codeNotFound problemCode = "not_found"
	// The path does not take this method; the header Allow names those that it takes.
	codeMethodNotAllowed problemCode = "method_not_allowed"
	// The request is for another host than that of CAIRN_BASE_URL.
	codeWrongHost problemCode = "wrong_host"
	// A page of another origin sent the request.
	codeCrossOrigin problemCode = "cross_origin"
)

// The codes of refusals to sign in.
const (
	// The user name or the password is wrong.
	codeInvalidCredentials problemCode = "invalid_credentials"
	// The password is right; the code of the second factor is missing.
	codeOTPRequired problemCode = "otp_required"
	// The code of the second factor is wrong, or was used before.
	codeOTPInvalid problemCode = "otp_invalid"
	// On the login page, the code came too late, or the account was changed meanwhile.
	codeSignInAgain problemCode = "sign_in_again"
	// The password is right; the account waits for an administrator's approval.
	codeAccountPending problemCode = "account_pending"
	// The password is right; the account is disabled.
	codeAccountDisabled problemCode = "account_disabled"
	// Only administrators can create accounts.
	codeRegistrationClosed problemCode = "registration_closed"
	// The token for a new password is unknown, used or expired.
	codePasswordTokenInvalid problemCode = "password_token_invalid"
	// The passkey is unknown or has ended, or its answer is wrong, too late or for another site.
	codePasskeyInvalid problemCode = "passkey_invalid"
	// The request has no refresh cookie.
	codeRefreshTokenMissing problemCode = "refresh_token_missing"
	// The refresh cookie is not one that Cairn made.
	codeRefreshTokenInvalid problemCode = "refresh_token_invalid"
	// The refresh token was replaced before; the session has been ended.
	codeRefreshTokenReused problemCode = "refresh_token_reused"
	// The session has ended, or never existed.
	codeSessionEnded problemCode = "session_ended"
	// The database is older than the refresh token, as after a restore; the session has been ended.
	codeSessionLost problemCode = "session_lost"
	// The attempt has to wait; the header Retry-After says how long.
	codeTooManyAttempts problemCode = "too_many_attempts"
	// The key that the second factor is encrypted with is missing.
	codeTOTPUnavailable problemCode = "totp_unavailable"
	// A new password cannot be compared with the breached ones.
	codePasswordListUnavailable problemCode = "password_list_unavailable"
)

// The codes of refusals to callers whose credential or permissions are not enough.
const (
	// The request shows no credential.
	codeNotSignedIn problemCode = "not_signed_in"
	// The credential is invalid, has ended or expired, or its user is not active.
	codeInvalidToken problemCode = "invalid_token"
	// An API token cannot do this; a session can.
	codeSessionRequired problemCode = "session_required"
	// The caller does not hold the permission.
	codePermissionMissing problemCode = "permission_missing"
	// The caller holds the permission, but the API token does not name it.
	codeTokenScope problemCode = "token_scope"
	// A role of the caller requires a second factor, and the caller has none.
	codeSecondFactorMissing problemCode = "second_factor_missing"
	// A proxy asked about an API token without naming a permission.
	codePermissionRequired problemCode = "permission_required"
	// The change needs a permission that the caller does not hold.
	codeGrantExceedsOwn problemCode = "grant_exceeds_own"
	// The current password is wrong.
	codeWrongPassword problemCode = "wrong_password"
	// One's own address, password and second factor change under /api/v1/auth.
	codeUseOwnRoute problemCode = "use_own_route"
)

// The codes of conflicts with the state of accounts.
const (
	// The object has changed since the caller read it; If-Match names an older entity tag.
	codeStale problemCode = "stale"
	// A user has the name, or had it.
	codeUsernameTaken problemCode = "username_taken"
	// Another user has the e-mail address.
	codeEmailTaken problemCode = "email_taken"
	// The account was changed while the request ran.
	codePasswordChanged problemCode = "password_changed"
	// Afterwards no active user would hold the role admin.
	codeLastAdministrator problemCode = "last_administrator"
	// Another role, permission, API token or dataset has the name.
	codeNameTaken problemCode = "name_taken"
	// The built-in role cannot be removed, or changed in this way.
	codeRoleBuiltIn problemCode = "role_built_in"
	// Users hold the role.
	codeRoleInUse problemCode = "role_in_use"
	// The permission is built in.
	codePermissionBuiltIn problemCode = "permission_built_in"
	// Roles or API tokens hold the permission.
	codePermissionInUse problemCode = "permission_in_use"
	// A dataset requires the permission.
	codePermissionRequiredByDataset problemCode = "permission_required_by_dataset"
	// A hundred permissions are declared already.
	codeTooManyPermissions problemCode = "too_many_permissions"
	// The user has a hundred API tokens already.
	codeTooManyTokens problemCode = "too_many_tokens"
	// The user has an authenticator app already.
	codeTOTPEnabled problemCode = "totp_enabled"
	// No secret of a second factor waits for confirmation, or it has expired.
	codeTOTPNotBegun problemCode = "totp_not_begun"
	// The passkey is registered already.
	codePasskeyTaken problemCode = "passkey_taken"
	// The user has ten passkeys already.
	codeTooManyPasskeys problemCode = "too_many_passkeys"
)

// The codes of announcements, datasets and analyses.
const (
	// The system message is not for the caller.
	codeNotAddressed problemCode = "not_addressed"
	// The system message has been retracted.
	codeRetracted problemCode = "retracted"
	// The system message is published, so its time cannot change.
	codeAlreadyPublished problemCode = "already_published"
	// Another dataset has the directory.
	codePathTaken problemCode = "path_taken"
	// The file system does not answer, or fails.
	codeFileUnavailable problemCode = "file_unavailable"
	// The file has none of the bytes of the header Range.
	codeNoSuchRange problemCode = "no_such_range"
	// A dataset of the comparison has not been analysed.
	codeNotChecked problemCode = "not_checked"
	// The finding was accepted before.
	codeAlreadyAccepted problemCode = "already_accepted"
	// An analysis of the dataset runs; the header Location names it.
	codeAnalysisRunning problemCode = "analysis_running"
	// The user has 16 requests that wait for analyses.
	codeTooManyWaiting problemCode = "too_many_waiting"
)

// The codes of a service that cannot answer now.
const (
	// A queue is full, or the request waited in it up to its time limit.
	codeBusy problemCode = "busy"
	// The request did not end within its time limit.
	codeTooSlow problemCode = "too_slow"
	// The database is not available.
	codeDatabaseUnavailable problemCode = "database_unavailable"
	// The service failed; its log has the cause under the request id.
	codeInternal problemCode = "internal"
)

// The codes of what is wrong with one field.
const (
	// The value does not have the form that the field needs.
	fieldMalformed fieldCode = "malformed"
	// The field is required.
	fieldMissing fieldCode = "missing"
	// The value is not one of those that exist.
	fieldUnknown fieldCode = "unknown"
	// The value is kept for another use.
	fieldReserved fieldCode = "reserved"
	// The value is too small or too large.
	fieldOutOfRange fieldCode = "out_of_range"
	// The parameter excludes another one.
	fieldExclusive fieldCode = "exclusive"
	// The password is too short.
	fieldTooShort fieldCode = "too_short"
	// The password is too long.
	fieldTooLong fieldCode = "too_long"
	// The password is a name of the account.
	fieldOwnName fieldCode = "own_name"
	// The password is known from a data breach.
	fieldBreached fieldCode = "breached"
	// The password is too common.
	fieldCommon fieldCode = "common"
	// A symbolic link leads out of the dataset root.
	fieldOutsideRoot fieldCode = "outside_root"
	// There is no such directory or file.
	fieldNotFound fieldCode = "not_found"
	// The path cannot be opened as a directory.
	fieldNotADirectory fieldCode = "not_a_directory"
)
