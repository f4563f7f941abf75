-- queue: the requests that wait.
--
-- queue    ZSET, request -> ticket. A request is '<hub>.<number>:<lease_ms>:<limit>:<permits>', which
--          is all that a script of another hub needs to grant it; with rates,
--          ':<costs>' of buckets.lua follow, and with keys a tail,
--          ':<key limit>:<weight>:<patience_ms>:<key>'. The key limit is '' for none, the key is
--          encoded, and '' for a request without one.
--
-- A freed permit goes to the request whose turn it is, in these steps (see serve.lua):
--
--   serve:  drop the requests of dead hubs, once after a hub has died
--           repeat
--             next_request: the request that is served next. nil if none may be: one blocks the queue
--             take:         give it a token, count its permits as in use, remove it from the queue
--           until there is none
--           deliver: send each hub its grants in one message. A hub that no message reaches counts as
--                    dead: its grants are taken back, its requests dropped, and it all begins anew
--           write_grants
--
-- order.lua, or keyed_order.lua with keys, says which request is next, and keeps what it needs for that
-- when requests join and leave the queue. A request that leaves the queue although its process still
-- waits is told so with the next heartbeat, and asks again with its age.

local MAX_SCANNED = 1000  -- requests that one call reads at most
local MAX_SERVED = 64     -- requests that one call grants, about

-- *request* as the queue has it.
local function format_request(number, lease, declared, permits, tail)
  return hub .. '.' .. number .. ':' .. lease .. ':' .. declared .. ':' .. exact(permits)
    .. (tail or '')
end
local function parse_request(text)
  local owner, number, lease, declared, permits, tail =
    string.match(text, '^(%x+)%.(%d+):(%d+):(%d+):(%d+)(.*)$')
  local request = {
    text = text, id = owner .. '.' .. number, owner = owner, number = number,
    lease = tonumber(lease), declared = tonumber(declared), permits = tonumber(permits),
  }
  if rated then request.costs, tail = string.match(tail, '^:([%d/+]*)(.*)$') end
  return keyed and keyed.parse_tail(request, tail) or request
end
local function ticket_of(request)
  return call('ZSCORE', queue, request)
end

-- What is known of the hub *owner*, read once in a call.
local hub_states = {}
local function hub_state(owner)
  local known = hub_states[owner]
  if not known then
    known = {
      alive_until = alive_until(owner),
      no_push = call('HGET', meta, owner .. ':no_push') == '1',
    }
    hub_states[owner] = known
  end
  return known
end

-- Whether *request* is granted next, where its turn has come and it fits under its limits; if not,
-- nothing is granted any more. One that only a back-off holds up blocks the requests behind it, too.
local function may_be_next(request)
  local most = limit_for(request.declared)
  local fits = state.used + request.permits <= room_in(most, state.used, state.ramp)
  local lets_at = fits and rated and rated.lets_at(request.costs) or nil
  if rated then rated.next_is(request, lets_at) end
  if fits and not lets_at then return true end
  state.blocked_until = hub_state(request.owner).alive_until
  return false
end
-- The call read or granted as much as it may, so the client has to call again.
local function stop_early()
  state.more, state.blocked_until = true, 0
end
