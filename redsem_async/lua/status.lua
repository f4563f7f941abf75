-- status: the state of the semaphore, from one read.
--
-- ARGV     max_entries  how many holders, how many waiters and how many keys to list at most
--          [after]      the key after which to list keys, '' to begin; only where there are keys
--          [begin]      with what the keys that are listed begin
-- RETURNS  {tag, set limit or -1 as in an acquire's reply, permits in use, requests waiting, now_us,
--          usual hold or -1, holders, queue, hubs, set, back_off}: holders is id, ms left, facts ...;
--          queue is request, ticket ...; hubs is hub, facts about it ... for the hubs that occur;
--          set and back_off are what is stored of the set limit and the back-off, '' for none.
--          With slots, also the longest list of them. With rates, also what meta has of them, or ''.
--          With keys, also what keyed.list() returns
--
-- uses: ramp (with_back_off), holders (append exact load_state), queue (hub_state parse_request)

local MAX_ENDED = 5000  -- expired holders and requests of the dead, which do not count
local max_entries = tonumber(ARGV[5])

load_state()
local owners, seen = {}, {}
local function list_owner(id)
  local owner = string.match(id, '^%x+')
  if not seen[owner] then
    seen[owner] = true
    append(owners, { owner, call('HGET', meta, owner .. ':client') or '' })
  end
end

local ended, expired, dead = 0, {}, {}  -- permits, and by key permits and requests
for _, id in ipairs(call('ZRANGEBYSCORE', holders, '-inf', now, 'LIMIT', 0, MAX_ENDED)) do
  local permits, key = string.match(call('HGET', facts, id) or '', '^%d+:(%d+):[^:]*:(.*)$')
  ended = ended + (permits or 1)
  if key then expired[key] = (expired[key] or 0) + permits end
end

local held = {}
local live = max_entries > 0 and call('ZRANGEBYSCORE', holders, '(' .. exact(now), '+inf',
  'WITHSCORES', 'LIMIT', 0, max_entries) or {}
for i = 1, #live, 2 do
  append(held, { live[i], math.ceil(live[i + 1] - now), call('HGET', facts, live[i]) or '0:1::' })
  list_owner(live[i])
end

-- More than are listed are read where requests of the dead may be among them.
local waits, entries, read = state.waiting, {}, max_entries
local looked = string.match(state.looked or '', '^(%d+)$')
if not looked or call('ZCOUNT', hubs, '(' .. looked, now) > 0 then
  read = math.max(max_entries, MAX_ENDED)
end
local rows = read > 0 and call('ZRANGE', queue, 0, read - 1, 'WITHSCORES') or {}
for i = 1, #rows, 2 do
  local request = parse_request(rows[i])
  if hub_state(request.owner).alive_until <= now then
    waits = waits - 1
    if keyed then dead[request.key] = (dead[request.key] or 0) + 1 end
  elseif #entries < 2 * max_entries then
    append(entries, { rows[i], exact(rows[i + 1]) })
    list_owner(rows[i])
  end
end

local reply = {
  tag, with_back_off(state.set_limit or -1, state.back_off), state.holding + state.heavy - ended,
  waits, now_us, usual_hold, held, entries, owners, call('GET', limit) or '', state.back_off or '',
}
if slotted then reply[#reply + 1] = call('HGET', meta, 'slots') or '' end
if rated then reply[#reply + 1] = call('HGET', meta, 'rates') or '' end
if keyed then append(reply, keyed.list(max_entries, ARGV[6], ARGV[7], expired, dead)) end
return reply
