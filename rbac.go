package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// The permissions. Each guards the routes that name it in the route table.
const (
	userManage         = "user.manage"
	roleManage         = "role.manage"
	adminSystemMessage = "admin.system_message"
	datasetRead        = "dataset.read"
	datasetAnalyze     = "dataset.analyze"
	datasetManage      = "dataset.manage"
	auditRead          = "audit.read"
	metricsRead        = "metrics.read"
)

// permissions lists every permission in the order it is shown.
func permissions() []string {
	return []string{userManage, roleManage, adminSystemMessage, datasetRead, datasetAnalyze, datasetManage, auditRead, metricsRead}
}

// The built-in roles.
const (
	adminRole  = "admin"  // holds every permission
	memberRole = "member" // given at registration
)

// principal is a signed-in caller: who, by which session, and what he may do now.
type principal struct {
	User        user
	Permissions []string
	SessionID   string
	ExpiresAt   time.Time // of the access token
}

// holds says whether the principal may do what needs the permission.
func (p *principal) holds(permission string) bool {
	return slices.Contains(p.Permissions, permission)
}

// effectivePermissions is what a user with these roles holds: all with the role admin, else the
// stored grants; names that the code does not know count as not held.
func effectivePermissions(roles, grants []string) []string {
	all := permissions()
	if slices.Contains(roles, adminRole) {
		return all
	}
	return slices.DeleteFunc(all, func(p string) bool { return !slices.Contains(grants, p) })
}

// unauthorized is a 401. A client that showed a credential learns that it is no longer good (RFC
// 6750, section 3.1), and nothing of why.
func unauthorized(w http.ResponseWriter, credentialShown bool) error {
	if credentialShown {
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		return &problem{status: http.StatusUnauthorized, code: "invalid_token", detail: "The access token is not good, or no longer: sign in again."}
	}
	return &problem{status: http.StatusUnauthorized, code: "not_signed_in", detail: "This needs an access token: Authorization: Bearer …"}
}

// authenticate finds out who sent the request, or returns the 401.
func (s *server) authenticate(w http.ResponseWriter, r *http.Request) (*principal, error) {
	token, shown := bearerToken(r)
	if !shown {
		return nil, unauthorized(w, false)
	}
	claims, err := s.keys.verifyAccess(token, s.now())
	if err != nil {
		return nil, unauthorized(w, true)
	}
	p, err := getPrincipal(r.Context(), s.db, claims.SessionID, claims.Subject)
	if errors.Is(err, errToken) {
		return nil, unauthorized(w, true)
	}
	if err != nil {
		return nil, err
	}
	p.ExpiresAt = time.Unix(claims.ExpiresAt, 0).UTC()
	return p, nil
}

// bearerToken is the token of the request's only Authorization header (RFC 6750, section 2.1).
func bearerToken(r *http.Request) (token string, ok bool) {
	headers := r.Header.Values("Authorization")
	if len(headers) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	return token, strings.EqualFold(scheme, "Bearer")
}

// getPrincipal reads who holds the session, if it and the user are still good; else errToken.
func getPrincipal(ctx context.Context, q querier, sessionID, userID string) (*principal, error) {
	const query = `
		SELECT ` + userColumns + `,
			ARRAY(
				SELECT DISTINCT rp.permission
				FROM user_roles ur
				JOIN role_permissions rp ON rp.role_id = ur.role_id
				WHERE ur.user_id = u.id
			) AS grants
		FROM sessions s
		JOIN users u ON u.id = s.user_id
		WHERE s.id = $1
			AND s.user_id = $2
			AND s.ended_at IS NULL
			AND s.idle_expires_at > now()
			AND s.expires_at > now()
			AND u.status = 'active'`
	rows, err := q.Query(ctx, query, sessionID, userID)
	if err != nil {
		return nil, fmt.Errorf("get principal: %w", err)
	}
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[struct {
		user
		Grants []string
	}])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, errToken
	}
	if err != nil {
		return nil, fmt.Errorf("get principal: %w", err)
	}
	return &principal{
		User:        found.user,
		Permissions: effectivePermissions(found.Roles, found.Grants),
		SessionID:   sessionID,
	}, nil
}

// grantRole gives the user the role of that name. The caller holds lockAccess.
func grantRole(ctx context.Context, tx pgx.Tx, userID, role string) error {
	const query = `
		INSERT INTO user_roles (user_id, role_id)
		SELECT $1, id
		FROM roles
		WHERE name = $2
		ON CONFLICT DO NOTHING`
	if _, err := tx.Exec(ctx, query, userID, role); err != nil {
		return fmt.Errorf("grant role: %w", err)
	}
	return nil
}
