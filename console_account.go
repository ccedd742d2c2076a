package main

import (
	"slices"
)

// maxHomeDatasets is how many datasets the home page shows, the worst first.
const maxHomeDatasets = 20

// homePage returns the data of the page at /: what Cairn is or, for somebody who is signed in, the
// unread messages, the accounts that wait for approval, the health of the datasets, and the first
// steps of an administrator.
func (c *console) homePage(api *apiReader) any {
	const countUsers = `
		SELECT
			count(*) FILTER (WHERE status = 'pending') AS pending,
			count(*) AS total
		FROM users`

	data := map[string]any{"Registration": c.core.cfg.registration != registrationClosed}
	reader := principalOf(api.r)
	if reader == nil {
		return data
	}

	if reader.holds(inboxRead) {
		inbox := get[listOf[message]](api, "/api/v1/inbox", "unread=true&limit=5")
		data["Messages"] = inbox.Items
	}

	if reader.holds(datasetRead) {
		datasets := api.addAnalyses(getAll[datasetItem](api, "/api/v1/datasets"))
		slices.SortStableFunc(datasets, func(a, b datasetDetails) int { return healthOf(a).rank - healthOf(b).rank })
		data["Datasets"] = datasets[:min(len(datasets), maxHomeDatasets)]
		data["More"] = len(datasets) > maxHomeDatasets
		data["IsAnalyzed"] = slices.ContainsFunc(datasets, func(d datasetDetails) bool { return d.Analysis != nil })
	}

	if reader.holds(userManage) && api.err == nil {
		data["Users"], api.err = collectOne[struct{ Pending, Total int64 }](
			api.r.Context(), c.core.db, nil, "count users", countUsers)
	}

	return data
}

// addAnalyses returns the datasets with no other details than the overview of the report and one
// analysis: the last one that has read the directory, or else the newest, if there is one.
func (api *apiReader) addAnalyses(datasets []datasetItem) (list []datasetDetails) {
	const query = `
		SELECT ` + analysisColumns + `
		FROM unnest($1::bigint[]) dataset
		JOIN analyses a ON a.id = (
			SELECT id
			FROM analyses
			WHERE dataset_id = dataset
			ORDER BY state IN ('succeeded', 'failed') AND NOT checks_only DESC, id DESC
			LIMIT 1
		)`

	if api.err != nil {
		return nil
	}

	var ids []int64
	for _, d := range datasets {
		ids = append(ids, d.ID)
		list = append(list, datasetDetails{dataset: d.dataset, Report: d.Report})
	}

	newest, err := collect[analysis](api.r.Context(), api.console.core.db,
		"list newest analyses", query, ids)
	api.err = err
	for i := range newest {
		at := slices.Index(ids, newest[i].DatasetID)
		list[at].Analysis = &newest[i]
	}
	return list
}

// registerPage returns the data of the page on which people create an account.
func (c *console) registerPage(*apiReader) any {
	return c.core.cfg.registration != registrationClosed
}

// inboxPage returns the data of a page of the reader's messages.
func (c *console) inboxPage(api *apiReader) any {
	return getPage[message](api, "/api/v1/inbox")
}

// accountPage returns the data of the page about the reader's own account.
func (c *console) accountPage(api *apiReader) any {
	expires := c.core.now().Add(defaultTokenTTL)

	return map[string]any{
		"Passkeys": get[listOf[passkey]](api, "/api/v1/auth/passkeys", "").Items,
		"Offered":  c.core.cfg.baseURL != "", // passkeys are
		"Sessions": getAll[sessionView](api, "/api/v1/auth/sessions"),
		"Tokens":   getAll[apiToken](api, "/api/v1/auth/tokens"),
		"Holds":    principalOf(api.r).permissions,
		"Expires":  &expires, // the default end of a new API token
	}
}

// loginPage returns the data of the page on which people sign in. Next is the page after that.
// While nobody has a password, the page tells the first administrator where the token is that sets
// one.
func (c *console) loginPage(api *apiReader) any {
	const query = `
		SELECT NOT EXISTS (
			SELECT FROM users
			WHERE password_hash IS NOT NULL
		)`

	// An error hides only the line for the first administrator.
	var isNew bool
	api.console.core.db.QueryRow(api.r.Context(), query).Scan(&isNew)

	return map[string]any{
		"Next":         safeNext(api.r.URL.Query().Get("next"), c.core.cfg.baseURL),
		"Passkeys":     c.core.cfg.baseURL != "",
		"IsNew":        isNew,
		"Registration": c.core.cfg.registration != registrationClosed,
		"Approval":     c.core.cfg.registration == registrationApproval,
	}
}
