-- Refuses commands of the script inside. ARGV ends with the time in us, and with what is refused.
local redis, answered = (function(real, refused, us)
  local names, muted, nth = {}, false, tonumber(refused)
  local writes = { HSET = 1, HDEL = 1, ZADD = 1, ZREM = 1, PEXPIRE = 1, SET = 1, DEL = 1, UNLINK = 1 }
  local function guarded(how)
    return function(name, ...)
      names[#names + 1] = name
      -- What is called while replication is off would be lost to replicas.
      if refused == name or nth == #names or refused == 'writes' and writes[name]
          or muted and name ~= 'PUBLISH' then
        return real[how]('REFUSED')  -- which no server knows
      end
      if name == 'TIME' then return { math.floor(us / 1000000), us % 1000000 } end
      if name ~= 'PEXPIRETIME' then return real[how](name, ...) end
      local left = real[how]('PTTL', ...)
      return left < 0 and left or math.floor(us / 1000) + left
    end
  end
  local function set_repl(what)
    assert(refused ~= 'set_repl')
    muted = what == 0
    if real.set_repl then real.set_repl(what) end
  end
  local ours = { call = guarded('call'), pcall = guarded('pcall'), set_repl = set_repl }
  ours.REPL_NONE, ours.REPL_ALL = 0, 3
  return setmetatable(ours, { __index = real }), function(reply)
    return type(reply) == 'table' and reply.err and reply or { reply, refused == '' and names or {} }
  end
end)(redis, table.remove(ARGV), table.remove(ARGV))
return answered((function()
--[[ the script stands here ]]
end)())
