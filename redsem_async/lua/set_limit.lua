-- set_limit: set or delete the limit that overrides the limit of every client.
--
-- The value of the key is '<limit>:<before>:<since>:<by>': the limit that a pause found and 'resume'
-- gives back, '' for none; when it was set, in ms of the semaphore's clock; who set it.
--
-- ARGV     new_limit  the limit, '' for none; 'pause' for 0 until 'resume', which gives back the
--                     limit that the pause found
--          number     number of this operation, which runs at most once
--          by         who sets it, as a text
--          [key]      whose limit it is, unless it is the overall limit
-- RETURNS  {tag, next_ms, waiting, own_grants}
--
-- uses: holders (exact limit_in load_state purge), hubs (already_ran note_call), serve (reply_head
--       serve)

local new_limit, number, by, key = ARGV[5], tonumber(ARGV[6]), ARGV[7], ARGV[8]

load_state()
if not already_ran(number, 'changes') then
  local value, found = call('GET', limit), ''
  local paused = limit_in(value) == 0
  if new_limit == 'pause' then
    new_limit, found = '0', paused and string.match(value, '^0:(%d*)') or limit_in(value) or ''
  elseif new_limit == 'resume' then
    new_limit = paused and string.match(value, '^0:(%d*)') or limit_in(value) or ''
  end
  if new_limit ~= '' then value = table.concat({ new_limit, found, exact(now), by }, ':') end
  if key then
    keyed.set_limit(key, new_limit ~= '' and value or '')
  elseif new_limit == '' then
    call('DEL', limit)
  else
    call('SET', limit, value)
  end
  note_call(number, 'changes')
  load_state()
end
purge()
serve()
return reply_head()
